// A kfake cluster, told what to do by lines on standard input: a word and its arguments. It answers each with a line.
package main

import (
	"bufio"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var (
	lock  sync.Mutex
	asked []int16
	acks  []int16
)

func main() {
	brokers := flag.Int("brokers", 1, "")
	sasl := flag.Bool("sasl", false, "")
	acls := flag.Bool("acls", false, "")
	dir := flag.String("dir", "", "")
	cert := flag.String("cert", "", "")
	key := flag.String("key", "", "")
	flag.Parse()
	options := []kfake.Opt{kfake.NumBrokers(*brokers), kfake.DefaultNumPartitions(1)}
	if *sasl {
		options = append(options, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"))
	}
	if *acls {
		options = append(options, kfake.EnableACLs())
	}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		end(err)
		options = append(options, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	if *dir != "" {
		options = append(options, kfake.DataDir(*dir))
	}
	cluster, err := kfake.NewCluster(options...)
	end(err)
	fmt.Println("ready", strings.Join(cluster.ListenAddrs(), ","))
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(do(cluster, strings.Fields(lines.Text())))
	}
	cluster.Close()
}

func end(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

func number(text string) int {
	var n int
	fmt.Sscan(text, &n)
	return n
}

func told(err error) string {
	if err != nil {
		return "failed " + err.Error()
	}
	return "ok"
}

func fault(topic, api, code, times string) kfake.Fault {
	err, _ := kerr.ErrorForCode(int16(number(code))).(*kerr.Error)
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Key(number(api))}, Topic: topic, Err: err, Count: number(times)}
}

func do(cluster *kfake.Cluster, words []string) string {
	switch words[0] {
	case "fail": // api, code, times
		cluster.Fault(fault("", words[1], words[2], words[3]))
	case "failtopic": // topic, api, code, times
		cluster.Fault(fault(words[1], words[2], words[3], words[4]))
	case "delay": // api, ms
		cluster.ControlKey(int16(number(words[1])), func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.DropControl()
			cluster.SleepControl(func() { time.Sleep(time.Duration(number(words[2])) * time.Millisecond) })
			return nil, nil, false
		})
	case "disconnect": // an error of a control function breaks the connection
		cluster.ControlKey(int16(number(words[1])), func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, fmt.Errorf("broken"), true
		})
	case "record":
		cluster.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
			lock.Lock()
			defer lock.Unlock()
			asked = append(asked, req.Key())
			if produce, is := req.(*kmsg.ProduceRequest); is {
				acks = append(acks, produce.Acks)
			}
			return nil, nil, false
		})
	case "asked":
		lock.Lock()
		defer lock.Unlock()
		return strings.Trim(fmt.Sprint(asked), "[]")
	case "acks":
		lock.Lock()
		defer lock.Unlock()
		return strings.Trim(fmt.Sprint(acks), "[]")
	case "work": // retention and compaction; there is no clock to move but that of testing/synctest, in Go
		cluster.ApplyRetention()
		cluster.Compact()
	case "move": // topic
		return told(cluster.MoveTopicPartition(words[1], 0, (cluster.LeaderFor(words[1], 0)+1)%3))
	case "kill": // topic
		return told(cluster.RemoveNode(cluster.LeaderFor(words[1], 0)))
	default:
		return "failed: no such word"
	}
	return "ok"
}
