import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a group; {@code tests/compat/members/common.py} has its order and the lines of its log. */
public final class Member implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(100);
    private static volatile boolean stopping;

    private final JsonNode order;
    private final boolean newProtocol;
    private final KafkaConsumer<byte[], byte[]> consumer;

    private Member(JsonNode order) {
        this.order = order;
        this.newProtocol = order.get("protocol").asText().equals("consumer");
        this.consumer = new KafkaConsumer<>(settings(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] arguments) throws Exception {
        Member member = new Member(JSON.readTree(arguments[0]));
        Thread input = new Thread(Member::waitForEndOfInput);
        input.setDaemon(true);
        input.start();
        member.subscribe();
        while (!stopping) {
            try {
                member.process(member.consumer.poll(POLL));
            } catch (KafkaException error) {
                member.trouble(error);
            }
        }
        member.say(JSON.createObjectNode().put("event", "closing"));
        member.consumer.close();
    }

    private static void waitForEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            System.err.println(error);
        }
        stopping = true;
    }

    private Map<String, Object> settings() {
        Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", order.get("bootstrap").asText(),
                "group.id", order.get("group").asText(),
                "group.protocol", order.get("protocol").asText(),
                "enable.auto.commit", false,
                "auto.offset.reset", "earliest",
                "fetch.max.wait.ms", 100,
                "metadata.max.age.ms", 1000,
                "max.poll.interval.ms", 30_000,
                "reconnect.backoff.max.ms", 500));
        put(settings, "group.instance.id", "instance");
        if (newProtocol) {
            put(settings, "group.remote.assignor", "assignor");
            return settings;
        }
        settings.put("session.timeout.ms", order.get("session_ms").asInt());
        settings.put("heartbeat.interval.ms", order.get("heartbeat_ms").asInt());
        if (order.get("assignor").asText().equals("cooperative-sticky")) {
            String assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
            settings.put("partition.assignment.strategy", assignor);
        } else {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        }
        return settings;
    }

    private void put(Map<String, Object> settings, String name, String field) {
        if (!order.get(field).isNull()) {
            settings.put(name, order.get(field).asText());
        }
    }

    private void subscribe() throws ReflectiveOperationException {
        if (order.get("regex").isNull()) {
            List<String> topics = new ArrayList<>();
            order.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics, this);
        } else if (newProtocol) {
            subscribeAtBroker(order.get("regex").asText());
        } else {
            consumer.subscribe(Pattern.compile("^" + order.get("regex").asText() + "$"), this);
        }
    }

    /** The broker matches the expression; clients before 4.0 have no such class. */
    private void subscribeAtBroker(String expression) throws ReflectiveOperationException {
        Class<?> type = Class.forName("org.apache.kafka.clients.consumer.SubscriptionPattern");
        Object pattern = type.getConstructor(String.class).newInstance(expression);
        KafkaConsumer.class.getMethod("subscribe", type, ConsumerRebalanceListener.class)
                .invoke(consumer, pattern, this);
    }

    private void process(ConsumerRecords<byte[], byte[]> records) {
        Map<TopicPartition, OffsetAndMetadata> following = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            ObjectNode line = JSON.createObjectNode().put("event", "record").put("topic", record.topic());
            line.put("partition", record.partition()).put("offset", record.offset());
            say(line.put("value", new String(record.value(), StandardCharsets.UTF_8)));
            TopicPartition place = new TopicPartition(record.topic(), record.partition());
            following.put(place, new OffsetAndMetadata(record.offset() + 1));
        }
        if (!following.isEmpty()) {
            consumer.commitSync(following, Duration.ofSeconds(5));
        }
    }

    private void trouble(KafkaException error) {
        say(JSON.createObjectNode().put("event", "trouble").put("error", String.valueOf(error)));
    }

    private void say(ObjectNode line) {
        System.out.println(line.put("at", System.nanoTime()));
    }

    private void sayPartitions(String event, Collection<TopicPartition> partitions) {
        ObjectNode line = JSON.createObjectNode().put("event", event);
        ArrayNode places = line.putArray("partitions");
        partitions.forEach(place -> places.addArray().add(place.topic()).add(place.partition()));
        say(line);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        sayPartitions("assigned", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        sayPartitions("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        sayPartitions("lost", partitions);
    }
}
