package orders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A kbroker in a process of its own, and where it is.
type broker struct {
	Bootstrap string `json:"bootstrap_servers"`
	Control   string `json:"control"`
}

func startBroker(t *testing.T) *broker {
	ready := filepath.Join(t.TempDir(), "ready")
	process := exec.Command("kbroker", "start", "--dev", "--memory", "--listen", "127.0.0.1:0",
		"--control", "127.0.0.1:0", "--ready-file", ready)
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Signal(syscall.SIGTERM)
		process.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if told, err := os.ReadFile(ready); err == nil {
			b := &broker{}
			if err := json.Unmarshal(told, b); err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatal("kbroker did not start")
	return nil
}

func (b *broker) ask(t *testing.T, method, path string, body, answer any) {
	t.Helper()
	sent, _ := json.Marshal(body)
	request, _ := http.NewRequest(method, b.Control+path, bytes.NewReader(sent))
	if body == nil {
		request, _ = http.NewRequest(method, b.Control+path, nil)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 400 {
		var refused struct{ Error string }
		json.NewDecoder(response.Body).Decode(&refused)
		t.Fatalf("%s %s: %s", method, path, refused.Error)
	}
	if answer != nil {
		if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnOrderIsWrittenAgainWhereTheLeaderHasMoved(t *testing.T) {
	b := startBroker(t)
	b.ask(t, "POST", "/reset", nil, nil) // before each test, where one broker serves several
	b.ask(t, "POST", "/topics", map[string]any{"name": "orders"}, nil)
	var fault struct{ Id, Hits int }
	b.ask(t, "POST", "/faults", map[string]any{
		"kind": "fail", "api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2, "topic": "orders",
	}, &fault)

	service(t, b.Bootstrap)

	b.ask(t, "DELETE", fmt.Sprintf("/faults/%d", fault.Id), nil, &fault)
	if fault.Hits != 2 {
		t.Errorf("the fault was met %d times", fault.Hits)
	}
	var there struct {
		Records []struct {
			Offset int64
			Value  struct{ Text, Base64 *string }
		}
	}
	b.ask(t, "GET", "/topics/orders/records", nil, &there)
	if len(there.Records) != 1 || *there.Records[0].Value.Text != "one" {
		t.Errorf("there are %+v", there.Records)
	}
}

// Stands for what is tested, with its own Kafka client.
func service(t *testing.T, bootstrap string) {
	command := exec.Command("kbroker", "produce", "orders", "--bootstrap", bootstrap)
	command.Stdin = strings.NewReader("one\n")
	if told, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %s", err, told)
	}
}
