"""Found by Spark itself: a module of this kind of name offers its `DefaultSource` as a format, here `headrace`."""
