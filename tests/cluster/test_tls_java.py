"""Kafka's Java client over TLS: another implementation of it than OpenSSL's, with PEM and PKCS12 stores of its own."""

import subprocess
from pathlib import Path

import pytest

from headrace.testing import Broker
from tests.support.apache_kafka import java_with_kafka
from tests.support.certificates import Authority, name

pytestmark = [pytest.mark.kafka, pytest.mark.long]

PROGRAM = """
import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.*;

public class Copy {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties settings = new Properties();
            try (FileReader reader = new FileReader(file)) { settings.load(reader); }
            byte[] value = new byte[3_000_000];
            try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int i = 0; i < 5; i++) {
                    value[0] = (byte) i;
                    producer.send(new ProducerRecord<>("orders", value.clone())).get();
                }
            }
            int found = 0, bytes = 0;
            var reader = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            try (reader) {
                reader.subscribe(List.of("orders"));
                while (found < 5) {
                    for (var record : reader.poll(Duration.ofSeconds(5))) { found++; bytes += record.value().length; }
                }
            }
            System.out.println(found + " " + bytes);
        }
    }
}
"""


def test_javas_client_gets_back_what_it_sent_by_both_versions_and_with_a_certificate(tmp_path: Path) -> None:
    authority = Authority()
    alice = authority.sign(name("alice", organization="y"), hosts=())
    ca = authority.write(tmp_path / "ca.pem")
    broker_settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.sign(bits=2048).write_pkcs12(tmp_path / "server.p12", "secret"),
        "ssl.keystore.password": "secret",
        "ssl.truststore.location": ca,
        "ssl.client.auth": "requested",
    }
    (tmp_path / "Copy.java").write_text(PROGRAM)
    with Broker(broker_settings) as broker:
        common = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": ca,
            "auto.offset.reset": "earliest",
            "max.request.size": "8000000",
        }
        pem = {"ssl.keystore.type": "PEM", "ssl.keystore.location": alice.write(tmp_path / "alice.pem")}
        pkcs12 = {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": alice.write_pkcs12(tmp_path / "alice.p12", "secret"),
            "ssl.keystore.password": "secret",
        }
        runs = [
            {"ssl.enabled.protocols": "TLSv1.3"},
            {"ssl.enabled.protocols": "TLSv1.2"},
            {"ssl.enabled.protocols": "TLSv1.3", **pem},
            {"ssl.enabled.protocols": "TLSv1.2", **pkcs12},
        ]
        files = []
        for number, own in enumerate(runs):
            path = tmp_path / f"{number}.properties"
            given = {**common, **own, "group.id": f"copy{number}"}
            path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
            files.append(str(path))
        command = [*java_with_kafka(), str(tmp_path / "Copy.java"), *files]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        counts = [tuple(map(int, line.split())) for line in ran.stdout.split("\n") if line]
        assert len(counts) == len(runs)
        assert all(found >= 5 and size == 3_000_000 * found for found, size in counts)
