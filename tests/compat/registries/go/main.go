// franz-go's sr against a registry: what each scenario came to, as JSON, one line each.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

const order = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":"string"}]}`

type value struct {
	ID   int64  `json:"id"`
	Note string `json:"note"`
}

var (
	ctx    = context.Background()
	url    = os.Args[1]
	prefix = os.Args[2]
)

func client(url string) *sr.Client {
	made, err := sr.NewClient(sr.URLs(url))
	if err != nil {
		panic(err)
	}
	return made
}

// avroValue is a value as Avro writes it: a zigzag number, then a text behind its length.
func avroValue(v value) []byte {
	var out []byte
	out = binary.AppendVarint(out, v.ID)
	out = binary.AppendVarint(out, int64(len(v.Note)))
	return append(out, v.Note...)
}

// framed is the schema's id before a value, as sr writes it.
func framed(id int, encode func(any) ([]byte, error), v value, index ...int) ([]byte, error) {
	var serde sr.Serde
	options := []sr.EncodingOpt{sr.EncodeFn(encode)}
	if len(index) > 0 {
		options = append(options, sr.Index(index...))
	}
	serde.Register(id, value{}, options...)
	data, err := serde.Encode(v)
	if err != nil {
		return nil, err
	}
	found, rest, err := serde.DecodeID(data)
	if err != nil || found != id {
		return nil, fmt.Errorf("id %d of %x: %v", found, data, err)
	}
	if len(index) > 0 {
		if _, _, err = serde.DecodeIndex(rest, len(index)); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func roundTrip(subject string, schema sr.Schema, encode func(any) ([]byte, error), index ...int) error {
	name := prefix + "-" + subject
	made, err := client(url).CreateSchema(ctx, name, schema)
	if err != nil {
		return err
	}
	if _, err = framed(made.ID, encode, value{7, "x"}, index...); err != nil {
		return err
	}
	found, err := client(url).SchemaByID(ctx, made.ID)
	if err != nil {
		return err
	}
	latest, err := client(url).SchemaByVersion(ctx, name, -1)
	if err != nil {
		return err
	}
	if found.Schema != latest.Schema.Schema || found.Type != schema.Type || latest.ID != made.ID {
		return fmt.Errorf("%v and %v differ", found, latest)
	}
	looked, err := client(url).LookupSchema(ctx, name, schema)
	if err != nil || looked.Version != 1 {
		return fmt.Errorf("looked up %v: %v", looked, err)
	}
	return nil
}

func encodeAvro(v any) ([]byte, error) { return avroValue(v.(value)), nil }
func encodeJSON(v any) ([]byte, error) { return json.Marshal(v) }
func encodeProto(v any) ([]byte, error) {
	return append([]byte{0x08, byte(v.(value).ID), 0x12, byte(len(v.(value).Note))}, v.(value).Note...), nil
}

func references() error {
	subject := prefix + "-kind"
	c := client(url)
	if _, err := c.CreateSchema(ctx, subject, sr.Schema{Schema: `{"type":"enum","name":"Kind","symbols":["A","B"]}`}); err != nil {
		return err
	}
	reference := sr.SchemaReference{Name: "Kind", Subject: subject, Version: 1}
	made, err := c.CreateSchema(ctx, prefix+"-kinded", sr.Schema{
		Schema:     `{"type":"record","name":"Kinded","fields":[{"name":"kind","type":"Kind"}]}`,
		References: []sr.SchemaReference{reference},
	})
	if err != nil {
		return err
	}
	users, err := c.SchemaReferences(ctx, subject, 1)
	if err != nil || len(users) != 1 || users[0].ID != made.ID {
		return fmt.Errorf("referred to by %v: %v", users, err)
	}
	if err = c.DeleteSchema(ctx, subject, 1, sr.SoftDelete); !refused(err, 42206) {
		return fmt.Errorf("deleted although it is referred to: %v", err)
	}
	return nil
}

func refused(err error, code int) bool {
	var answer *sr.ResponseError
	return errors.As(err, &answer) && answer.ErrorCode == code
}

func incompatible() error {
	subject := prefix + "-strict"
	c := client(url)
	if _, err := c.CreateSchema(ctx, subject, sr.Schema{Schema: order}); err != nil {
		return err
	}
	bad := sr.Schema{Schema: `{"type":"record","name":"Order","fields":[{"name":"must","type":"string"}]}`}
	if checked, err := c.CheckCompatibility(ctx, subject, -1, bad); err != nil || checked.Is {
		return fmt.Errorf("checked: %v: %v", checked, err)
	}
	if _, err := c.CreateSchema(ctx, subject, bad); !refused(err, 409) {
		return fmt.Errorf("it was taken: %v", err)
	}
	set := c.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, subject)
	if set[0].Err != nil {
		return set[0].Err
	}
	_, err := c.CreateSchema(ctx, subject, bad)
	return err
}

func deletions() error {
	subject := prefix + "-gone"
	c := client(url)
	if _, err := c.CreateSchema(ctx, subject, sr.Schema{Schema: order}); err != nil {
		return err
	}
	for _, how := range []sr.DeleteHow{sr.SoftDelete, sr.HardDelete} {
		if gone, err := c.DeleteSubject(ctx, subject, how); err != nil || len(gone) != 1 {
			return fmt.Errorf("deleted %v: %v", gone, err)
		}
	}
	if _, err := c.SubjectVersions(ctx, subject); !refused(err, 40401) {
		return fmt.Errorf("still there: %v", err)
	}
	set := c.SetMode(ctx, sr.ModeReadOnly, subject)
	if set[0].Err != nil {
		return set[0].Err
	}
	_, err := c.CreateSchema(ctx, subject, sr.Schema{Schema: order})
	if !refused(err, 42205) {
		return fmt.Errorf("written although read-only: %v", err)
	}
	return nil
}

func inContext() error {
	c := client(url + "/contexts/:." + prefix + ":")
	// sr looks for its schema under the subject's whole name, as registries list it.
	made, err := c.CreateSchema(ctx, ":."+prefix+":orders", sr.Schema{Schema: order})
	if err != nil || made.ID != 1 {
		return fmt.Errorf("made %v: %v", made, err)
	}
	found, err := c.Subjects(ctx)
	if err != nil || len(found) != 1 {
		return fmt.Errorf("subjects %v: %v", found, err)
	}
	_, err = c.SchemaByID(ctx, 1)
	return err
}

func say(line map[string]string) {
	var out bytes.Buffer
	_ = json.NewEncoder(&out).Encode(line)
	fmt.Print(out.String())
}

func main() {
	proto := `syntax = "proto3"; message Order { int64 id = 1; string note = 2; }`
	object := `{"type":"object","properties":{"id":{"type":"integer"},"note":{"type":"string"}}}`
	scenarios := []struct {
		name string
		try  func() error
	}{
		{"avro", func() error { return roundTrip("avro", sr.Schema{Schema: order}, encodeAvro) }},
		{"json", func() error { return roundTrip("json", sr.Schema{Schema: object, Type: sr.TypeJSON}, encodeJSON) }},
		{"protobuf", func() error {
			return roundTrip("protobuf", sr.Schema{Schema: proto, Type: sr.TypeProtobuf}, encodeProto, 0)
		}},
		{"references", references},
		{"incompatible", incompatible},
		{"deletions", deletions},
		{"context", inContext},
	}
	for _, each := range scenarios {
		said := ""
		if err := each.try(); err != nil {
			said = err.Error()
		}
		say(map[string]string{"name": each.name, "error": said})
	}
	made, err := client(url).CreateSchema(ctx, "shared-value", sr.Schema{Schema: order})
	if err != nil {
		panic(err)
	}
	data, err := framed(made.ID, encodeAvro, value{7, "x"})
	if err != nil {
		panic(err)
	}
	say(map[string]string{"name": "shared", "data": hex.EncodeToString(data)})
}
