import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Orders {
    /** A kbroker in a process of its own, and where it is. */
    static class Broker implements AutoCloseable {
        private final HttpClient http = HttpClient.newHttpClient();
        private final Process process;
        final String bootstrap;
        final String control;

        Broker() throws Exception {
            Path ready = Files.createTempDirectory("kbroker").resolve("ready");
            process = new ProcessBuilder("kbroker", "start", "--dev", "--memory", "--listen", "127.0.0.1:0",
                    "--control", "127.0.0.1:0", "--ready-file", ready.toString())
                    .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroy)); // also where a test ends the JVM
            for (int tries = 0; !Files.exists(ready) && tries < 1000 && process.isAlive(); tries++) {
                Thread.sleep(20);
            }
            String told = Files.readString(ready);
            bootstrap = field(told, "bootstrap_servers");
            control = field(told, "control");
        }

        /** Return the JSON of the answer: read it with the library that your tests have. */
        String ask(String method, String path, String body) throws Exception {
            var request = HttpRequest.newBuilder(URI.create(control + path)).header("Content-Type", "application/json")
                    .method(method, body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(body)).build();
            var answer = http.send(request, BodyHandlers.ofString());
            if (answer.statusCode() >= 400) {
                throw new AssertionError(method + " " + path + ": " + field(answer.body(), "error"));
            }
            return answer.body();
        }

        @Override
        public void close() throws Exception {
            process.destroy();
            process.waitFor(20, TimeUnit.SECONDS);
        }
    }

    static String field(String json, String name) {
        var found = Pattern.compile("\"" + name + "\":\\s*\"?([^\",}]*)").matcher(json);
        return found.find() ? found.group(1) : null;
    }

    public static void main(String[] arguments) throws Exception {
        try (var broker = new Broker()) {
            broker.ask("POST", "/reset", null); // before each test, where one broker serves several
            broker.ask("POST", "/topics", "{\"name\": \"orders\"}");
            var fault = broker.ask("POST", "/faults",
                    "{\"kind\": \"fail\", \"api\": \"Produce\", \"error\": \"NOT_LEADER_OR_FOLLOWER\", \"times\": 2}");

            service(broker.bootstrap);

            var met = broker.ask("DELETE", "/faults/" + field(fault, "id"), null);
            check(field(met, "hits").equals("2"), met);
            var records = broker.ask("GET", "/topics/orders/records", null);
            check(records.contains("\"value\":{\"text\":\"one\"}"), records);
        }
        System.out.println("the order was written again");
    }

    /** Stands for what is tested. */
    static void service(String bootstrap) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("orders", "one")).get(20, TimeUnit.SECONDS);
        }
    }

    static void check(boolean holds, String told) {
        if (!holds) {
            throw new AssertionError(told);
        }
    }
}
