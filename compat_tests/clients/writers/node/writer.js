// Writes records with kafkajs: `node writer.js BOOTSTRAP TOPIC RECORDS`.
//
// RECORDS is JSON: a list of [key or null, value, {header: value}], all text.
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, records] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "writer", brokers: [bootstrap], logLevel: logLevel.NOTHING });

async function main() {
  const producer = kafka.producer({ retry: { retries: 0 } });
  await producer.connect();
  const messages = JSON.parse(records).map(([key, value, headers]) => ({ key, value, headers }));
  await producer.send({ topic, messages });
  await producer.disconnect();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
