// kafkajs behind one JSON command per line; tests/compat/clients/process.py has the protocol.
//
// kafkajs consumes only in groups, so `consume` joins a group of its own, seeks, and leaves.

const readline = require("node:readline");
const { randomUUID } = require("node:crypto");
const kafkajs = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");
const lz4 = require("lz4-napi");
const { ZstdCodec } = require("zstd-codec");

const { CompressionTypes, CompressionCodecs, ConfigResourceTypes, Partitioners } = kafkajs;
const MAX_MESSAGE_BYTES = 12 * 1024 * 1024;
const TIMEOUT_MS = 20_000;

const kafka = new kafkajs.Kafka({
  brokers: [process.argv[2]],
  logLevel: kafkajs.logLevel.ERROR,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${log.message} ${log.error || ""}\n`),
});
const admin = kafka.admin();

const encode = (buffer) => (buffer == null ? null : Buffer.from(buffer).toString("base64"));
const decode = (text) => (text === null ? null : Buffer.from(text, "base64"));

// kafkajs brings gzip alone; Kafka reads only LZ4 frames of independent blocks, which not every package writes.
function installCodecs(zstd) {
  const [simple, streaming] = [new zstd.Simple(), new zstd.Streaming()];
  CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async ({ buffer }) => lz4.compressFrameSync(buffer),
    decompress: async (buffer) => lz4.decompressFrameSync(buffer),
  });
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async ({ buffer }) => Buffer.from(simple.compress(buffer)),
    // Other clients' frames do not tell their content's size, which the simple API needs.
    decompress: async (buffer) => Buffer.from(streaming.decompress(buffer)),
  });
}

// kafkajs takes headers as an object; a repeated name holds an array.
function toHeaders(pairs) {
  const headers = {};
  for (const [name, value] of pairs) {
    const bytes = decode(value);
    headers[name] = name in headers ? [].concat(headers[name], [bytes]) : bytes;
  }
  return headers;
}

function fromHeaders(headers = {}) {
  return Object.entries(headers).flatMap(([name, value]) =>
    Array.isArray(value) ? value.map((one) => [name, encode(one)]) : [[name, encode(value)]],
  );
}

function toMessage({ key, value, headers, partition, timestamp }) {
  const message = { key: decode(key), value: decode(value), headers: toHeaders(headers) };
  if (partition !== null) message.partition = partition;
  if (timestamp !== null) message.timestamp = String(timestamp);
  return message;
}

// kafkajs answers one base offset per partition; records keep their order inside it.
function positionsOf(records, acknowledged) {
  if (records.some((record) => record.partition === null)) return null;
  const next = new Map(acknowledged.map((entry) => [entry.partition, Number(entry.baseOffset)]));
  return records.map(({ partition }) => {
    const offset = next.get(partition);
    next.set(partition, offset + 1);
    return [partition, offset];
  });
}

async function produce({ topic, records, codec, acks, idempotent }) {
  const compression = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 }[codec];
  const producer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    allowAutoTopicCreation: false,
    idempotent,
  });
  await producer.connect();
  try {
    const acknowledged = await producer.send({ topic, acks, compression, messages: records.map(toMessage) });
    return acks === 0 ? null : positionsOf(records, acknowledged);
  } finally {
    await producer.disconnect();
  }
}

async function transact({ topic, records, id, commit, group, offset }) {
  const producer = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  try {
    const transaction = await producer.transaction();
    await transaction.send({ topic, messages: records.map(toMessage) });
    const topics = [{ topic, partitions: [{ partition: 0, offset: String(offset) }] }];
    await transaction.sendOffsets({ consumerGroupId: group, topics });
    await (commit ? transaction.commit() : transaction.abort());
  } finally {
    await producer.disconnect();
  }
}

async function consume({ topic, spans, committed }) {
  const groupId = `compat-${randomUUID()}`;
  const limits = { maxBytesPerPartition: MAX_MESSAGE_BYTES, maxWaitTimeInMs: 100 };
  const consumer = kafka.consumer({ groupId, readUncommitted: !committed, ...limits });
  const wanted = new Map(spans.map(([partition, start, end]) => [partition, { start, end }]));
  const found = new Map();
  const total = spans.reduce((sum, [, , , count]) => sum + count, 0);
  let timer;
  await consumer.connect();
  try {
    await consumer.subscribe({ topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      timer = setTimeout(resolve, TIMEOUT_MS);
      const eachMessage = async ({ partition, message }) => {
        const span = wanted.get(partition);
        const offset = Number(message.offset);
        if (!span || offset < span.start || offset >= span.end) return;
        found.set(`${partition}:${offset}`, fromMessage(partition, message));
        if (found.size === total) resolve();
      };
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      consumer
        .run({ autoCommit: false, eachMessage })
        .then(() => spans.forEach(([partition, start]) => consumer.seek({ topic, partition, offset: String(start) })))
        .catch(reject);
    });
  } finally {
    clearTimeout(timer);
    await consumer.disconnect();
  }
  return [...found.values()];
}

function fromMessage(partition, { offset, timestamp, key, value, headers }) {
  return {
    partition,
    offset: Number(offset),
    timestamp: Number(timestamp),
    key: encode(key),
    value: encode(value),
    headers: fromHeaders(headers),
  };
}

async function topicConfig({ topic }) {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
  const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] });
  return Object.fromEntries(resources[0].configEntries.map(({ configName, configValue }) => [configName, configValue]));
}

async function alterConfig({ topic, config }) {
  const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configEntries };
  await admin.alterConfigs({ validateOnly: false, resources: [resource] });
}

async function createTopic({ topic, partitions, config }) {
  const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
  await admin.createTopics({
    waitForLeaders: true,
    topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }],
  });
}

async function partitionCount({ topic }) {
  const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
  return topics[0].partitions.filter(({ leader }) => leader >= 0).length;
}

// kafkajs answers the end of the partition when no record is late enough.
async function offsetAt({ topic, partition, timestamp }) {
  const offsets = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp);
  return Number(offsets.find((entry) => entry.partition === partition).offset);
}

const verbs = {
  version: async () => require("kafkajs/package.json").version,
  create_topic: createTopic,
  list_topics: () => admin.listTopics(),
  partition_count: partitionCount,
  topic_config: topicConfig,
  alter_config: alterConfig,
  delete_topic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  produce,
  transact,
  consume,
  offset_at: offsetAt,
};

async function main() {
  await new Promise((resolve) => ZstdCodec.run((zstd) => resolve(installCodecs(zstd))));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { verb, ...command } = JSON.parse(line);
    let answer;
    try {
      if (verb !== "version") await admin.connect();
      answer = { ok: (await verbs[verb](command)) ?? null };
    } catch (error) {
      answer = { error: `${error.name}: ${error.message}` };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  await admin.disconnect();
}

main();
