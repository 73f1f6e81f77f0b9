// Tests of a schema registry at $REGISTRY by Confluent's client for JavaScript: the client, three serializers, rules.
import assert from "node:assert/strict";
import { test } from "node:test";
import schemas from "@confluentinc/schemaregistry";

const { AvroDeserializer, AvroSerializer, CelExecutor, JsonDeserializer, JsonSerializer, SchemaRegistryClient, SerdeType } =
  schemas;
CelExecutor.register();
const client = () => SchemaRegistryClient.newClient({ baseURLs: [process.env.REGISTRY] });
const field = (name, type, more = {}) => ({ name, type, ...more });
const order = (...fields) => JSON.stringify({ type: "record", name: "Order", fields });
const first = order(field("id", "long"));
const second = order(field("id", "long"), field("note", "string", { default: "none" }));
const wrong = order(field("id", "long"), field("must", "string"));
const refused = (work, status, code) =>
  assert.rejects(work, (error) => error.status === status && error.errorCode === code);

test("versions, look-ups and deletions", async () => {
  const made = client();
  const subject = "js-versions";
  const one = await made.register(subject, { schemaType: "AVRO", schema: first });
  const two = await made.register(subject, { schemaType: "AVRO", schema: second });
  assert.ok(two > one);
  assert.deepEqual(await made.getAllVersions(subject), [1, 2]);
  assert.equal((await made.getLatestSchemaMetadata(subject)).id, two);
  assert.equal((await client().getBySubjectAndId(subject, one)).schema, JSON.stringify(JSON.parse(first)));
  assert.equal(await client().getVersion(subject, { schemaType: "AVRO", schema: first }), 1);
  await refused(made.register(subject, { schemaType: "AVRO", schema: wrong }), 409, 40901);
  await refused(made.register(subject, { schemaType: "AVRO", schema: "{" }), 422, 42201);
  await refused(made.getAllVersions("js-none"), 404, 40401);
  assert.deepEqual(await made.deleteSubject(subject), [1, 2]);
  assert.deepEqual(await made.deleteSubject(subject, true), [1, 2]);
  await refused(client().getAllVersions(subject), 404, 40401);
});

test("levels and checks", async () => {
  const made = client();
  await made.register("js-levels", { schemaType: "AVRO", schema: first });
  assert.equal(await made.testSubjectCompatibility("js-levels", { schemaType: "AVRO", schema: second }), true);
  assert.equal(await made.testSubjectCompatibility("js-levels", { schemaType: "AVRO", schema: wrong }), false);
  await made.updateCompatibility("js-levels", "NONE");
  assert.equal(await made.getCompatibility("js-levels"), "NONE");
  await made.register("js-levels", { schemaType: "AVRO", schema: wrong });
});

test("Avro, with a reader's later schema and a rule", async () => {
  const made = client();
  const ruleSet = {
    domainRules: [{ name: "positive", kind: "CONDITION", mode: "WRITE", type: "CEL", expr: "message.id > 0" }],
  };
  await made.register("js-avro-value", { schemaType: "AVRO", schema: first, ruleSet });
  const writer = new AvroSerializer(client(), SerdeType.VALUE, { useLatestVersion: true });
  const bytes = await writer.serialize("js-avro", { id: 7 });
  await assert.rejects(writer.serialize("js-avro", { id: -7 }), /positive/);
  await made.register("js-avro-value", { schemaType: "AVRO", schema: second });
  const reader = new AvroDeserializer(client(), SerdeType.VALUE, { useLatestVersion: true });
  assert.deepEqual({ ...(await reader.deserialize("js-avro", bytes)) }, { id: 7, note: "none" });
});

test("JSON Schema, with a reference", async () => {
  const made = client();
  const person = JSON.stringify({ type: "object", properties: { name: { type: "string" } }, required: ["name"] });
  await made.register("js-person", { schemaType: "JSON", schema: person });
  const schema = JSON.stringify({ type: "object", properties: { by: { $ref: "person.json" } } });
  const references = [{ name: "person.json", subject: "js-person", version: 1 }];
  await made.register("js-json-value", { schemaType: "JSON", schema, references });
  const writer = new JsonSerializer(client(), SerdeType.VALUE, { useLatestVersion: true, validate: true });
  const bytes = await writer.serialize("js-json", { by: { name: "a" } });
  await assert.rejects(writer.serialize("js-json", { by: {} }));
  const reader = new JsonDeserializer(client(), SerdeType.VALUE, {});
  assert.deepEqual(await reader.deserialize("js-json", bytes), { by: { name: "a" } });
});
