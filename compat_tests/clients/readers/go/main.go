// Reads a topic in a group with franz-go: `go run . BOOTSTRAP TOPIC GROUP COUNT IDLE_SECONDS`.
//
// Polls on for some seconds after COUNT records, commits, and prints the values and the committed offset as JSON.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic, group := os.Args[1], os.Args[2], os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	idle, _ := strconv.Atoi(os.Args[5])
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ClientID("reader"), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond), kgo.DisableAutoCommit(),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	values := []string{}
	until := time.Now().Add(60 * time.Second)
	for idling := false; time.Now().Before(until); {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
		cancel()
		if len(values) >= count && !idling {
			idling, until = true, time.Now().Add(time.Duration(idle)*time.Second)
		}
	}
	if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
		panic(err)
	}
	committed := int64(-1)
	for _, partitions := range client.CommittedOffsets() {
		for _, offset := range partitions {
			committed = offset.Offset
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"values": values, "committed": committed})
}
