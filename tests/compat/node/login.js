// kafkajs writes records and reads them back, as one login on stdin says; see tests/compat/logins/python_client.py.

const fs = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const login = JSON.parse(fs.readFileSync(0, "utf8"));

function sasl() {
  if (!login.mechanism) return undefined;
  if (login.mechanism === "OAUTHBEARER") {
    return { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: login.secret }) };
  }
  return { mechanism: login.mechanism.toLowerCase(), username: login.user, password: login.secret };
}

function tls() {
  const ca = [fs.readFileSync(login.ca, "utf8")];
  if (!login.certificate) return { ca };
  return { ca, cert: fs.readFileSync(login.certificate, "utf8"), key: fs.readFileSync(login.key, "utf8") };
}

const kafka = new Kafka({
  brokers: [login.bootstrap],
  ssl: tls(),
  sasl: sasl(),
  retry: { retries: 2, initialRetryTime: 100 },
  connectionTimeout: 5000,
  logLevel: logLevel.NOTHING,
});

async function main() {
  const producer = kafka.producer();
  await producer.connect();
  for (let number = 0; number < login.count; number++) {
    await producer.send({ topic: login.topic, messages: [{ value: String(number), partition: 0 }] });
    await new Promise((resolve) => setTimeout(resolve, login.pause_ms));
  }
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: login.group });
  await consumer.connect();
  await consumer.subscribe({ topic: login.topic, fromBeginning: true });
  let seen = 0;
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${seen} of ${login.count} records came back`)), 30000).unref();
    const eachMessage = async () => {
      seen += 1;
      if (seen === login.count) resolve();
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`${error.name}: ${error.message}\n`);
    process.exit(1);
  },
);
