// A member of a group with kafkajs; tests/compat/members/common.py has its order and the lines of its log.
//
// kafkajs has no callback for revoked partitions: they are over when it says that it rebalances.

const kafkajs = require("kafkajs");

const order = JSON.parse(process.argv[2]);
const kafka = new kafkajs.Kafka({
  brokers: [order.bootstrap],
  logLevel: kafkajs.logLevel.ERROR,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${log.message} ${log.error || ""}\n`),
  retry: { initialRetryTime: 100, maxRetryTime: 1000, retries: 20 },
});
const consumer = kafka.consumer({
  groupId: order.group,
  sessionTimeout: order.session_ms,
  heartbeatInterval: order.heartbeat_ms,
  rebalanceTimeout: 30_000,
  metadataMaxAge: 1000,
  maxWaitTimeInMs: 100,
});
let owned = [];

// The clock comes first in the line: a number of nanoseconds is beyond JavaScript's exact integers.
function say(event, fields = {}) {
  const rest = JSON.stringify({ event, ...fields }).slice(1);
  process.stdout.write(`{"at":${process.hrtime.bigint()},${rest}\n`);
}

function giveUp(event) {
  if (owned.length > 0) say(event, { partitions: owned });
  owned = [];
}

async function eachBatch({ batch, resolveOffset, heartbeat, isRunning, isStale }) {
  if (!isRunning() || isStale() || batch.messages.length === 0) return;
  const { topic, partition } = batch;
  for (const { offset, value } of batch.messages) {
    say("record", { topic, partition, offset: Number(offset), value: value.toString() });
    resolveOffset(offset);
  }
  const next = (BigInt(batch.lastOffset()) + 1n).toString();
  await consumer.commitOffsets([{ topic, partition, offset: next }]);
  await heartbeat();
}

async function main() {
  consumer.on(consumer.events.REBALANCING, () => giveUp("revoked"));
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    say("trouble", { error: String(payload.error) });
    giveUp("lost");
  });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    giveUp("revoked");
    owned = Object.entries(payload.memberAssignment).flatMap(([topic, all]) => all.map((one) => [topic, one]));
    say("assigned", { partitions: owned });
  });
  await consumer.connect();
  const topics = order.regex === null ? order.topics : [new RegExp(`^${order.regex}$`)];
  await consumer.subscribe({ topics, fromBeginning: true });
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch });
  process.stdin.resume();
  process.stdin.on("end", async () => {
    say("closing");
    await consumer.disconnect();
    process.exit(0);
  });
}

main();
