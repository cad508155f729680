import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.auth.SaslExtensions;
import org.apache.kafka.common.security.auth.SaslExtensionsCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client writes records and reads them back, as one login on stdin says; see tests/compat/logins/python_client.py. */
public final class Login {
    private static final String SECURITY = "org.apache.kafka.common.security.";
    private static String token = "";

    /** Hands out the token that was given. */
    public static final class Tokens implements AuthenticateCallbackHandler {
        @Override
        public void configure(Map<String, ?> settings, String mechanism, List<AppConfigurationEntry> entries) {}

        @Override
        public void close() {}

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) callback).token(new Token());
                } else if (callback instanceof SaslExtensionsCallback) {
                    ((SaslExtensionsCallback) callback).extensions(SaslExtensions.empty());
                }
            }
        }
    }

    private static final class Token implements OAuthBearerToken {
        @Override
        public String value() {
            return token;
        }

        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 600_000;
        }

        @Override
        public String principalName() {
            return "whoever";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode login = new ObjectMapper().readTree(System.in);
        try {
            run(login);
        } catch (Exception error) {
            System.err.println(error + (error.getCause() == null ? "" : ": " + error.getCause()));
            Runtime.getRuntime().halt(1);
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(JsonNode login) throws Exception {
        Map<String, Object> settings = settings(login);
        int count = login.get("count").asInt();
        String topic = login.get("topic").asText();
        long timeout = (long) (login.get("timeout_s").asDouble() * 1000);
        Map<String, Object> writing = new HashMap<>(settings);
        writing.put("max.block.ms", timeout);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, Integer.toString(number).getBytes()))
                        .get(timeout, TimeUnit.MILLISECONDS);
                Thread.sleep(login.get("pause_ms").asLong());
            }
        }
        settings.put("group.id", login.get("group").asText());
        settings.put("auto.offset.reset", "earliest");
        int seen = 0;
        long until = System.currentTimeMillis() + 30_000;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (seen < count && System.currentTimeMillis() < until) {
                seen += consumer.poll(Duration.ofMillis(500)).count();
            }
        }
        if (seen != count) {
            throw new IllegalStateException(seen + " of " + count + " records came back");
        }
    }

    private static Map<String, Object> settings(JsonNode login) {
        Map<String, Object> settings = new HashMap<>();
        String mechanism = login.get("mechanism").asText();
        settings.put("bootstrap.servers", login.get("bootstrap").asText());
        settings.put("security.protocol", login.get("protocol").asText());
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", login.get("ca").asText());
        if (!login.get("keystore").asText().isEmpty()) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", login.get("keystore").asText());
        }
        if (mechanism.isEmpty()) {
            return settings;
        }
        settings.put("sasl.mechanism", mechanism);
        String user = login.get("user").asText();
        String secret = login.get("secret").asText();
        if (mechanism.equals("OAUTHBEARER")) {
            token = secret;
            settings.put("sasl.jaas.config", SECURITY + "oauthbearer.OAuthBearerLoginModule required;");
            settings.put("sasl.login.callback.handler.class", Tokens.class.getName());
            return settings;
        }
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        String more = login.get("is_token").asBoolean() ? " tokenauth=\"true\"" : "";
        settings.put(
                "sasl.jaas.config",
                SECURITY + module + " required username=\"" + user + "\" password=\"" + secret + "\"" + more + ";");
        return settings;
    }
}
