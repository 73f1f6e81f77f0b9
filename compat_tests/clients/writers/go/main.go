// Writes records with franz-go: `go run . BOOTSTRAP TOPIC RECORDS`.
//
// RECORDS is JSON: a list of [key or null, value, {header: value}], all text.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ClientID("writer"), kgo.DefaultProduceTopic(os.Args[2]))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	var told [][]json.RawMessage
	if err := json.Unmarshal([]byte(os.Args[3]), &told); err != nil {
		panic(err)
	}
	records := []*kgo.Record{}
	for _, each := range told {
		var key *string
		var value string
		var headers map[string]string
		for at, into := range []any{&key, &value, &headers} {
			if err := json.Unmarshal(each[at], into); err != nil {
				panic(err)
			}
		}
		record := &kgo.Record{Value: []byte(value)}
		if key != nil {
			record.Key = []byte(*key)
		}
		for name, text := range headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(text)})
		}
		records = append(records, record)
	}
	if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		panic(err)
	}
}
