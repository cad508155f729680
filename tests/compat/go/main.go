// franz-go writes records and reads them back, as one login on stdin says; see tests/compat/logins/python_client.py.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type login struct {
	Bootstrap   string  `json:"bootstrap"`
	Mechanism   string  `json:"mechanism"`
	User        string  `json:"user"`
	Secret      string  `json:"secret"`
	IsToken     bool    `json:"is_token"`
	CA          string  `json:"ca"`
	Certificate string  `json:"certificate"`
	Key         string  `json:"key"`
	Topic       string  `json:"topic"`
	Group       string  `json:"group"`
	Count       int     `json:"count"`
	PauseMs     int     `json:"pause_ms"`
	TimeoutS    float64 `json:"timeout_s"`
}

func main() {
	var given login
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		fail(err)
	}
	if err := run(given); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func mechanism(given login) sasl.Mechanism {
	auth := scram.Auth{User: given.User, Pass: given.Secret, IsToken: given.IsToken}
	switch given.Mechanism {
	case "PLAIN":
		return plain.Auth{User: given.User, Pass: given.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return auth.AsSha512Mechanism()
	case "OAUTHBEARER":
		return oauth.Auth{Token: given.Secret}.AsMechanism()
	}
	return nil
}

func options(given login) ([]kgo.Opt, error) {
	authority, err := os.ReadFile(given.CA)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: trusted}
	if given.Certificate != "" {
		certificate, err := tls.LoadX509KeyPair(given.Certificate, given.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	found := []kgo.Opt{
		kgo.SeedBrokers(given.Bootstrap),
		kgo.DialTLSConfig(config),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(time.Duration(given.TimeoutS * float64(time.Second))),
	}
	if given.Mechanism != "" {
		found = append(found, kgo.SASL(mechanism(given)))
	}
	return found, nil
}

func run(given login) error {
	found, err := options(given)
	if err != nil {
		return err
	}
	limit := time.Duration(given.TimeoutS*float64(time.Second)) + time.Duration(given.Count*given.PauseMs)*time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	producer, err := kgo.NewClient(found...)
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := 0; number < given.Count; number++ {
		record := &kgo.Record{Topic: given.Topic, Value: []byte(fmt.Sprint(number))}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		time.Sleep(time.Duration(given.PauseMs) * time.Millisecond)
	}
	reading := append(found, kgo.ConsumeTopics(given.Topic), kgo.ConsumerGroup(given.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	consumer, err := kgo.NewClient(reading...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	wait, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	seen := 0
	for seen < given.Count {
		fetches := consumer.PollFetches(wait)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d of %d records came back: %w", seen, given.Count, err)
		}
		seen += fetches.NumRecords()
	}
	return nil
}
