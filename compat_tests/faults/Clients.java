import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Does what a line of standard input says with a Java client of its own, each in a thread, and prints what came of it:
 * "number result". A line is number, what to do, bootstrap servers, topic, and what else it needs, with tabs between them.
 *
 * Arguments: how long to wait for an answer, to try a record, and to look for one, and between two tries, in ms.
 */
public class Clients {
    private static int requestMs, deliveryMs, readMs, backoffMs;

    public static void main(String[] arguments) throws Exception {
        requestMs = Integer.parseInt(arguments[0]);
        deliveryMs = Integer.parseInt(arguments[1]);
        readMs = Integer.parseInt(arguments[2]);
        backoffMs = Integer.parseInt(arguments[3]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] asked = line.split("\t", -1);
            Thread thread = new Thread(() -> {
                String result = answer(asked);
                synchronized (System.out) {
                    System.out.println(asked[0] + " " + result);
                    System.out.flush();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }

    private static String answer(String[] asked) {
        try {
            switch (asked[1]) {
                case "produce": return produce(asked[2], asked[3], Integer.parseInt(asked[4]), asked[5]);
                case "consume": return consume(asked[2], asked[3], null, "0", "6000");
                case "group": return consume(asked[2], asked[3], asked[4], asked[5], asked[6]);
                case "transact": return transact(asked[2], asked[3], asked[4], asked[5], asked[6]);
                default: return "unknown";
            }
        } catch (TimeoutException error) {
            return "nothing";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            Throwable told = error.getClass() == KafkaException.class && error.getCause() != null ? error.getCause() : error;
            return told.getClass().getSimpleName();
        }
    }

    private static Properties common(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", requestMs);
        settings.put("retry.backoff.ms", backoffMs);
        settings.put("retry.backoff.max.ms", 2 * backoffMs);
        settings.put("reconnect.backoff.ms", backoffMs);
        settings.put("reconnect.backoff.max.ms", 2 * backoffMs);
        settings.put("metadata.max.age.ms", 500);
        settings.put("enable.metrics.push", false);
        return settings;
    }

    private static KafkaProducer<String, String> producer(Properties settings) {
        settings.put("delivery.timeout.ms", deliveryMs);
        settings.put("linger.ms", 0);
        settings.put("acks", "all");
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static String produce(String bootstrap, String topic, int count, String idempotent) throws Exception {
        Properties settings = common(bootstrap);
        settings.put("max.block.ms", deliveryMs);
        settings.put("enable.idempotence", idempotent);
        KafkaProducer<String, String> producer = producer(settings);
        try {
            for (int number = 0; number < count; number++)
                producer.send(new ProducerRecord<>(topic, 0, null, "" + number)).get(readMs + 4000, TimeUnit.MILLISECONDS);
            return "delivered";
        } finally {
            producer.close(Duration.ofMillis(100));
        }
    }

    private static String consume(String bootstrap, String topic, String group, String pauseMs, String sessionMs)
        throws InterruptedException {
        Properties settings = common(bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 200);
        settings.put("default.api.timeout.ms", deliveryMs);
        settings.put("heartbeat.interval.ms", 200);
        settings.put("session.timeout.ms", sessionMs);
        if (group != null) settings.put("group.id", group);
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        try {
            if (group == null) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                consumer.seek(new TopicPartition(topic, 0), 0);
            } else {
                consumer.subscribe(List.of(topic));
            }
            long deadline = System.nanoTime() + readMs * 1_000_000L;
            while (System.nanoTime() < deadline) {
                if (!consumer.poll(Duration.ofMillis(100)).isEmpty()) {
                    if (group == null) return "read";
                    Thread.sleep(Long.parseLong(pauseMs));
                    consumer.commitSync();
                    return "committed";
                }
            }
            return "nothing";
        } finally {
            consumer.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ofMillis(500)));
        }
    }

    private static String transact(String bootstrap, String topic, String name, String pauseMs, String timeoutMs)
        throws InterruptedException {
        Properties settings = common(bootstrap);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", timeoutMs);
        settings.put("max.block.ms", readMs);
        KafkaProducer<String, String> producer = producer(settings);
        try {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "0"));
            if (!pauseMs.equals("0")) {
                producer.flush();
                Thread.sleep(Long.parseLong(pauseMs));
            }
            producer.commitTransaction();
            return "committed";
        } finally {
            producer.close(Duration.ofMillis(100));
        }
    }
}
