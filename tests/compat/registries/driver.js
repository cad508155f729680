// @kafkajs/confluent-schema-registry against a registry: what each scenario came to, as JSON, one line each.

const { SchemaRegistry, SchemaType, COMPATIBILITY } = require("@kafkajs/confluent-schema-registry");

const [url, prefix] = process.argv.slice(2);
const registry = new SchemaRegistry({ host: url, retry: { retries: 0 } });
const ORDER = { type: "record", name: "Order", fields: [{ name: "id", type: "long" }, { name: "note", type: "string" }] };
const VALUE = { id: 7, note: "x" };

function equal(found, wanted) {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
}

async function roundTrip(schema, subject, value) {
  const { id } = await registry.register(schema, { subject: `${prefix}-${subject}`, compatibility: COMPATIBILITY.BACKWARD });
  const data = await registry.encode(id, value);
  const other = new SchemaRegistry({ host: url });
  equal(await other.decode(data), value);
  return data;
}

const avro = (schema) => ({ type: SchemaType.AVRO, schema: JSON.stringify(schema) });

const scenarios = {
  avro: () => roundTrip(avro(ORDER), "avro", VALUE),
  json: () => {
    const schema = { type: "object", properties: { id: { type: "integer" }, note: { type: "string" } }, required: ["id"] };
    return roundTrip({ type: SchemaType.JSON, schema: JSON.stringify(schema) }, "json", VALUE);
  },
  protobuf: () => {
    const schema = 'syntax = "proto3"; message Order { int32 id = 1; string note = 2; }';
    return roundTrip({ type: SchemaType.PROTOBUF, schema }, "protobuf", VALUE);
  },
  references: async () => {
    const subject = `${prefix}-kind`;
    await registry.register(avro({ type: "enum", name: "Kind", symbols: ["A", "B"] }), { subject });
    const schema = JSON.stringify({ type: "record", name: "Kinded", fields: [{ name: "kind", type: "Kind" }] });
    const references = [{ name: "Kind", subject, version: 1 }];
    await roundTrip({ type: SchemaType.AVRO, schema, references }, "kinded", { kind: "B" });
  },
  incompatible: async () => {
    const subject = `${prefix}-strict`;
    await registry.register(avro(ORDER), { subject });
    const bad = { ...ORDER, fields: [...ORDER.fields, { name: "must", type: "string" }] };
    try {
      await registry.register(avro(bad), { subject });
    } catch (error) {
      if (error.status === 409) return;
      throw error;
    }
    throw new Error("it was taken");
  },
  context: async () => {
    const inContext = new SchemaRegistry({ host: `${url}/contexts/:.${prefix}:` });
    const { id } = await inContext.register(avro(ORDER), { subject: "orders" });
    equal(id, 1);
    equal(await inContext.getLatestSchemaId("orders"), 1);
  },
};

async function main() {
  for (const [name, scenario] of Object.entries(scenarios)) {
    let error = "";
    try {
      await scenario();
    } catch (failure) {
      error = String(failure.message || failure);
    }
    console.log(JSON.stringify({ name, error }));
  }
  const { id } = await registry.register(avro(ORDER), { subject: "shared-value" });
  console.log(JSON.stringify({ name: "shared", data: (await registry.encode(id, VALUE)).toString("hex") }));
}

main();
