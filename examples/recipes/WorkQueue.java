import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

/**
 * A worker of a work queue, with Java's share consumer: each job is accepted, released for another try, or rejected.
 *
 * <p>A job that was tried share.delivery.count.limit times, or rejected, goes to the group's dead letter topic, if the
 * group has one. Start as many workers as you like: they share the jobs of one partition, too.
 *
 * <pre>java -cp "kafka/libs/*" WorkQueue.java 127.0.0.1:9092 jobs workers 60</pre>
 *
 * <p>The arguments: where the broker is, the topic, the group, and for how many seconds to work.
 */
public class WorkQueue {
    public static void main(String[] arguments) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", arguments[0],
            "group.id", arguments[2],
            "share.acknowledgement.mode", "explicit",
            "key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        long until = System.nanoTime() + Duration.ofSeconds(Long.parseLong(arguments[3])).toNanos();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]));
            while (System.nanoTime() < until) {
                for (ConsumerRecord<String, String> job : consumer.poll(Duration.ofMillis(500))) {
                    consumer.acknowledge(job, outcome(job));
                }
                // Without this, the next poll sends the acknowledgements.
                consumer.commitSync().forEach((partition, error) -> error.ifPresent(WorkQueue::complain));
            }
        }
    }

    /** Does a job. What nobody can do is rejected; what may succeed later is released. */
    static AcknowledgeType outcome(ConsumerRecord<String, String> job) {
        System.out.println(job.value() + " try " + job.deliveryCount().orElseThrow());
        if (job.value().startsWith("nonsense")) {
            return AcknowledgeType.REJECT;
        }
        return job.value().startsWith("flaky") && job.deliveryCount().orElseThrow() < 3
            ? AcknowledgeType.RELEASE
            : AcknowledgeType.ACCEPT;
    }

    static void complain(Exception error) {
        System.err.println("not acknowledged: " + error.getMessage());
    }
}
