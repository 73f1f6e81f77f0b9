import assert from "node:assert";
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { setTimeout } from "node:timers/promises";

// A kbroker in a process of its own, and where it is.
let directory, process_, broker;

before(async () => {
  directory = mkdtempSync(join(tmpdir(), "kbroker-"));
  const ready = join(directory, "ready");
  const at = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"];
  process_ = spawn("kbroker", ["start", "--dev", "--memory", ...at, "--ready-file", ready], { stdio: "ignore" });
  for (let tries = 0; broker === undefined && tries < 1000; tries++) {
    try {
      broker = JSON.parse(readFileSync(ready, "utf8"));
    } catch {
      await setTimeout(20);
    }
  }
  assert(broker, "kbroker did not start");
});

after(async () => {
  const ended = new Promise((resolve) => process_.once("exit", resolve));
  process_.kill("SIGTERM");
  await ended;
  rmSync(directory, { recursive: true });
});

async function ask(method, path, body) {
  const answer = await fetch(broker.control + path, {
    method,
    ...(body && { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
  });
  const told = await answer.json();
  assert(answer.ok, `${method} ${path}: ${told.error}`);
  return told;
}

beforeEach(() => ask("POST", "/reset"));

test("an order is written again where the leader has moved", async () => {
  await ask("POST", "/topics", { name: "orders" });
  const fault = await ask("POST", "/faults", {
    kind: "fail", api: "Produce", error: "NOT_LEADER_OR_FOLLOWER", times: 2, topic: "orders",
  });

  service(broker.bootstrap_servers);

  assert.equal((await ask("DELETE", `/faults/${fault.id}`)).hits, 2);
  const { records } = await ask("GET", "/topics/orders/records");
  assert.deepEqual(records.map((each) => each.value), [{ text: "one" }]);
});

// Stands for what is tested, with its own Kafka client.
function service(bootstrap) {
  const done = spawnSync("kbroker", ["produce", "orders", "--bootstrap", bootstrap], { input: "one\n" });
  assert.equal(done.status, 0, `${done.stderr}`);
}
