import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** Apache Kafka's Java client behind one JSON command per line; {@code tests/compat/clients/process.py} has the protocol. */
public final class Driver {
    private static final int MAX_MESSAGE_BYTES = 12 * 1024 * 1024;
    private static final long TIMEOUT_MS = 20_000;
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrap;
    private final Admin admin;

    private Driver(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(settings(Map.of()));
    }

    public static void main(String[] arguments) throws IOException {
        Driver driver = new Driver(arguments[0]);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", JSON.valueToTree(driver.answer(JSON.readTree(line))));
            } catch (ExecutionException error) {
                answer.put("error", String.valueOf(error.getCause()));
            } catch (Exception error) {
                answer.put("error", String.valueOf(error));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        driver.admin.close(Duration.ofSeconds(1));
    }

    private Object answer(JsonNode command) throws Exception {
        String topic = command.path("topic").asText();
        switch (command.get("verb").asText()) {
            case "version":
                return AppInfoParser.getVersion();
            case "create_topic":
                NewTopic created = new NewTopic(topic, command.get("partitions").asInt(), (short) 1);
                return admin.createTopics(List.of(created.configs(config(command)))).all().get();
            case "list_topics":
                return admin.listTopics().names().get();
            case "partition_count":
                return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().stream()
                        .filter(partition -> partition.leader() != null).count();
            case "topic_config":
                return topicConfig(topic);
            case "alter_config":
                return alterConfig(topic, config(command));
            case "delete_topic":
                return admin.deleteTopics(List.of(topic)).all().get();
            case "produce":
                return produce(topic, command);
            case "transact":
                return transact(topic, command);
            case "consume":
                return consume(topic, command.get("spans"), command.get("committed").asBoolean());
            case "offset_at":
                return offsetAt(new TopicPartition(topic, command.get("partition").asInt()), command.get("timestamp").asLong());
            default:
                throw new IllegalArgumentException("unknown verb in " + command);
        }
    }

    private Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>(more);
        all.put("bootstrap.servers", bootstrap);
        return all;
    }

    private Map<String, String> topicConfig(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, String> values = new HashMap<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            values.put(entry.name(), entry.value());
        }
        return values;
    }

    private Object alterConfig(String topic, Map<String, String> config) throws Exception {
        Collection<AlterConfigOp> changes = new ArrayList<>();
        config.forEach((name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        return admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all().get();
    }

    private List<long[]> produce(String topic, JsonNode command) throws Exception {
        int acks = command.get("acks").asInt();
        Map<String, Object> settings = settings(Map.of(
                "acks", String.valueOf(acks),
                "enable.idempotence", command.get("idempotent").asBoolean(),
                "compression.type", command.get("codec").asText(),
                "max.request.size", MAX_MESSAGE_BYTES,
                "linger.ms", 20));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : command.get("records")) {
                sent.add(producer.send(fromJson(topic, record)));
            }
            producer.flush();
        }
        List<long[]> positions = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            positions.add(new long[] {one.get().partition(), one.get().offset()});
        }
        return acks == 0 ? null : positions;
    }

    private Object transact(String topic, JsonNode command) throws Exception {
        Map<String, Object> settings = settings(Map.of("transactional.id", command.get("id").asText()));
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (JsonNode record : command.get("records")) {
                producer.send(fromJson(topic, record));
            }
            producer.flush();
            OffsetAndMetadata offset = new OffsetAndMetadata(command.get("offset").asLong());
            ConsumerGroupMetadata group = new ConsumerGroupMetadata(command.get("group").asText());
            producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), offset), group);
            if (command.get("commit").asBoolean()) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        return null;
    }

    private KafkaConsumer<byte[], byte[]> consumer(boolean committed) {
        Map<String, Object> settings = settings(Map.of(
                "enable.auto.commit", false,
                "auto.offset.reset", "none",
                "max.partition.fetch.bytes", MAX_MESSAGE_BYTES,
                "fetch.max.wait.ms", 100,
                "isolation.level", committed ? "read_committed" : "read_uncommitted"));
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private ArrayNode consume(String topic, JsonNode spans, boolean committed) {
        Map<TopicPartition, Long> ends = new HashMap<>();
        ArrayNode received = JSON.createArrayNode();
        long deadline = System.currentTimeMillis() + TIMEOUT_MS;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(committed)) {
            spans.forEach(span -> ends.put(new TopicPartition(topic, span.get(0).asInt()), span.get(2).asLong()));
            consumer.assign(List.copyOf(ends.keySet()));
            spans.forEach(span -> consumer.seek(new TopicPartition(topic, span.get(0).asInt()), span.get(1).asLong()));
            while (!ends.isEmpty() && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    TopicPartition partition = new TopicPartition(topic, record.partition());
                    long end = ends.getOrDefault(partition, 0L);
                    if (record.offset() < end) {
                        received.add(toJson(record));
                    }
                    if (record.offset() == end - 1) {
                        ends.remove(partition);
                    }
                }
            }
        }
        return received;
    }

    private Long offsetAt(TopicPartition partition, long timestamp) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(false)) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
            return found == null ? null : found.offset();
        }
    }

    private static Map<String, String> config(JsonNode command) {
        Map<String, String> config = new HashMap<>();
        command.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        return config;
    }

    private static ProducerRecord<byte[], byte[]> fromJson(String topic, JsonNode record) throws IOException {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
        }
        Integer partition = record.get("partition").isNull() ? null : record.get("partition").asInt();
        Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
        return new ProducerRecord<>(topic, partition, timestamp, bytes(record.get("key")), bytes(record.get("value")), headers);
    }

    private static ObjectNode toJson(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode node = JSON.createObjectNode();
        node.put("partition", record.partition()).put("offset", record.offset()).put("timestamp", record.timestamp());
        node.put("key", text(record.key())).put("value", text(record.value()));
        ArrayNode headers = node.putArray("headers");
        record.headers().forEach(header -> headers.addArray().add(header.key()).add(text(header.value())));
        return node;
    }

    private static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
