// Reads a topic in a group with kafkajs: `node reader.js BOOTSTRAP TOPIC GROUP COUNT IDLE_SECONDS`.
//
// Goes on for some seconds after COUNT records, commits, and prints the values and the committed offset as JSON.
const { Kafka, logLevel } = require("kafkajs");

const [bootstrap, topic, groupId, count, idle] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "reader", brokers: [bootstrap], logLevel: logLevel.NOTHING });

async function main() {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 500 });
  const values = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => void values.push(message.value.toString()),
  });
  const until = Date.now() + 60000;
  while (values.length < Number(count) && Date.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await new Promise((resolve) => setTimeout(resolve, 1000 * Number(idle)));
  await consumer.disconnect(); // commits
  const admin = kafka.admin();
  await admin.connect();
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic] });
  await admin.disconnect();
  console.log(JSON.stringify({ values, committed: Number(found.partitions[0].offset) }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
