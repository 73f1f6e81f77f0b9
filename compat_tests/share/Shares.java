import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application of KafkaShareConsumer sees, in steps, each with a topic and a group of its own. All run at once:
 * a new group waits 5 s for its second heartbeat. Prints a line for each fact: the step, a tab, what was seen.
 *
 * Arguments: bootstrap server, prefix of the names of topics and groups.
 */
public class Shares {
    static final Duration LONGEST = Duration.ofSeconds(30);
    static final Duration QUIET = Duration.ofMillis(700);
    static final ThreadLocal<String> step = new ThreadLocal<>();
    static String server, prefix;
    static Admin admin;

    interface Step {
        void run(String topic, String group) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        prefix = arguments[1];
        admin = Admin.create(Map.of("bootstrap.servers", server));
        Map<String, Step> steps = new TreeMap<>();
        steps.put("explicit", Shares::explicit);
        steps.put("implicit", Shares::implicit);
        steps.put("misuse", Shares::misuse);
        steps.put("limit", Shares::limit);
        steps.put("closed", Shares::closed);
        steps.put("renewed", Shares::renewed);
        steps.put("few-a-poll", Shares::fewAPoll);
        steps.put("committed", Shares::committed);
        steps.put("two", Shares::two);
        steps.put("later", Shares::later);
        steps.put("no-topic", Shares::noTopic);
        List<Thread> running = new ArrayList<>();
        steps.forEach((name, body) -> running.add(new Thread(() -> run(name, body))));
        running.forEach(Thread::start);
        for (Thread each : running) {
            each.join();
        }
        admin.close();
    }

    static void run(String name, Step body) {
        step.set(name);
        String topic = prefix + "-" + name;
        try {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            configure(topic + "-group", "share.auto.offset.reset", "earliest");
            body.run(topic, topic + "-group");
        } catch (Exception error) {
            see("failed: " + error);
        }
    }

    static void see(Object fact) {
        System.out.println(step.get() + "\t" + String.valueOf(fact).replace(prefix + "-", ""));
    }

    // Acknowledges each record by itself, by its offset; what was released comes again.
    static void explicit(String topic, String group) throws Exception {
        produce(topic, 12);
        AcknowledgeType[] types = {AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT};
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<ConsumerRecord<String, String>> records = poll(consumer, 12);
            for (ConsumerRecord<String, String> each : records) {
                consumer.acknowledge(each, types[(int) each.offset() % 3]);
            }
            see(committed(consumer));
            records = poll(consumer, 4);
            see(told(records));
            records.forEach(consumer::acknowledge);
            see(committed(consumer));
            see("more: " + quiet(consumer));
            see("lock: " + consumer.acquisitionLockTimeoutMs());
        }
        see(offset(topic, group));
    }

    // The next poll accepts what the one before returned.
    static void implicit(String topic, String group) throws Exception {
        produce(topic, 5);
        Map<String, Object> how = Map.of("share.acknowledgement.mode", "implicit");
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, how)) {
            see(told(poll(consumer, 5)));
            see(committed(consumer));
            produce(topic, 3);
            see(told(poll(consumer, 3)));
        }
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, how)) {
            see("after close: " + quiet(consumer));
        }
        see(offset(topic, group));
    }

    static void misuse(String topic, String group) throws Exception {
        produce(topic, 3);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<ConsumerRecord<String, String>> records = poll(consumer, 3);
            see(thrown(() -> consumer.poll(QUIET)));
            see(thrown(() -> consumer.acknowledge(topic, 0, 77, AcknowledgeType.ACCEPT)));
            records.forEach(consumer::acknowledge);
            see(committed(consumer));
            see(thrown(() -> consumer.acknowledge(records.get(0), AcknowledgeType.ACCEPT)));
        }
        Map<String, Object> how = Map.of("share.acknowledgement.mode", "implicit");
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, how)) {
            produce(topic, 1);
            List<ConsumerRecord<String, String>> records = poll(consumer, 1);
            see(thrown(() -> consumer.acknowledge(records.get(0), AcknowledgeType.RELEASE)));
        }
    }

    // A record that is released each time is given up after the group's limit; its neighbours are not.
    static void limit(String topic, String group) throws Exception {
        configure(group, "share.delivery.count.limit", "3");
        produce(topic, 4);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            for (int delivery = 1; delivery <= 3; delivery++) {
                List<ConsumerRecord<String, String>> records = poll(consumer, delivery == 1 ? 4 : 1);
                see(told(records));
                for (ConsumerRecord<String, String> each : records) {
                    consumer.acknowledge(each, each.offset() == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                }
                see(committed(consumer));
            }
            see("more: " + quiet(consumer));
        }
        see(offset(topic, group));
    }

    // Records of a consumer that closes without a word go to the next one.
    static void closed(String topic, String group) throws Exception {
        produce(topic, 3);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            see(told(poll(consumer, 3)));
        }
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<ConsumerRecord<String, String>> records = poll(consumer, 3);
            see(told(records));
            records.forEach(consumer::acknowledge);
        }
        see(offset(topic, group));
    }

    static void renewed(String topic, String group) throws Exception {
        produce(topic, 3);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<ConsumerRecord<String, String>> records = poll(consumer, 3);
            for (ConsumerRecord<String, String> each : records) {
                consumer.acknowledge(each, each.offset() == 1 ? AcknowledgeType.RENEW : AcknowledgeType.ACCEPT);
            }
            see(committed(consumer));
            records = poll(consumer, 1);
            see(told(records));
            records.forEach(consumer::acknowledge);
            see(committed(consumer));
        }
        see(offset(topic, group));
        configure(group, "share.renew.acknowledge.enable", "false");
        produce(topic, 1);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            for (ConsumerRecord<String, String> each : poll(consumer, 1)) {
                consumer.acknowledge(each, AcknowledgeType.RENEW);
            }
            see(committed(consumer));
        }
    }

    static void fewAPoll(String topic, String group) throws Exception {
        produce(topic, 10);
        Map<String, Object> how = Map.of("share.acquire.mode", "record_limit", "max.poll.records", 3);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, how)) {
            for (int left = 10; left > 0; left -= 3) {
                List<ConsumerRecord<String, String>> records = poll(consumer, Math.min(left, 3));
                see(told(records));
                records.forEach(consumer::acknowledge);
                see(committed(consumer));
            }
        }
        see(offset(topic, group));
    }

    // A group with read_committed gets nothing of an aborted transaction.
    static void committed(String topic, String group) throws Exception {
        configure(group, "share.isolation.level", "read_committed");
        Map<String, Object> settings = settings();
        settings.put("transactional.id", topic);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            for (String how : List.of("aborted", "committed", "aborted", "committed")) {
                producer.beginTransaction();
                for (int index = 0; index < 2; index++) {
                    producer.send(new ProducerRecord<>(topic, how, how + index));
                }
                producer.flush();
                if (how.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<ConsumerRecord<String, String>> records = poll(consumer, 4);
            see(told(records));
            records.forEach(consumer::acknowledge);
            see(committed(consumer));
            see("more: " + quiet(consumer));
        }
        see(offset(topic, group));
    }

    // Two consumers of one partition: each record goes to one of them.
    static void two(String topic, String group) throws Exception {
        try (KafkaShareConsumer<String, String> one = consumer(topic, group, Map.of());
                KafkaShareConsumer<String, String> other = consumer(topic, group, Map.of())) {
            Set<Long> offsets = new HashSet<>();
            int count = 0;
            long end = System.nanoTime() + LONGEST.toNanos();
            for (int round = 0; round < 20; round++) {
                produce(topic, 10);
            }
            while (count < 200 && System.nanoTime() < end) {
                for (KafkaShareConsumer<String, String> each : List.of(one, other)) {
                    for (ConsumerRecord<String, String> record : each.poll(Duration.ofMillis(50))) {
                        offsets.add(record.offset());
                        count++;
                        each.acknowledge(record);
                    }
                    each.commitSync();
                }
            }
            see(count + " records, " + offsets.size() + " offsets");
        }
    }

    static void later(String topic, String group) throws Exception {
        produce(topic, 2);
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            List<String> heard = new ArrayList<>();
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                offsets.forEach((partition, each) -> heard.add(new TreeSet<>(each) + " " + error));
            });
            poll(consumer, 2).forEach(consumer::acknowledge);
            consumer.commitAsync();
            long end = System.nanoTime() + LONGEST.toNanos();
            while (heard.isEmpty() && System.nanoTime() < end) {
                consumer.poll(Duration.ofMillis(50));
            }
            see(heard);
        }
    }

    static void noTopic(String topic, String group) throws Exception {
        admin.deleteTopics(List.of(topic)).all().get();
        try (KafkaShareConsumer<String, String> consumer = consumer(topic, group, Map.of())) {
            see("of a topic that is gone: " + quiet(consumer));
            see(consumer.subscription().size());
            consumer.unsubscribe();
            see(thrown(() -> consumer.poll(QUIET)));
        }
    }

    // -- the parts of the steps

    static Map<String, Object> settings() {
        return new HashMap<>(Map.of("bootstrap.servers", server));
    }

    static KafkaShareConsumer<String, String> consumer(String topic, String group, Map<String, Object> how) {
        Map<String, Object> settings = settings();
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.putAll(how);
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    static void produce(String topic, int count) throws Exception {
        Map<String, Object> settings = settings();
        settings.put("linger.ms", 5000);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int index = 0; index < count; index++) {
                producer.send(new ProducerRecord<>(topic, "k" + index, "v" + index));
            }
            producer.flush();
        }
    }

    static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer, int count) {
        long end = System.nanoTime() + LONGEST.toNanos();
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        while (found.isEmpty() && System.nanoTime() < end) {
            consumer.poll(Duration.ofSeconds(1)).forEach(found::add);
        }
        if (found.size() != count) {
            see("expected " + count + ", got " + found.size());
        }
        return found;
    }

    static List<String> quiet(KafkaShareConsumer<String, String> consumer) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        consumer.poll(QUIET).forEach(found::add);
        return told(found);
    }

    static List<String> told(List<ConsumerRecord<String, String>> records) {
        List<String> found = new ArrayList<>();
        for (ConsumerRecord<String, String> each : records) {
            String count = each.deliveryCount().map(String::valueOf).orElse("?");
            found.add(each.offset() + "=" + each.value() + " x" + count);
        }
        return found;
    }

    static Map<String, String> committed(KafkaShareConsumer<String, String> consumer) {
        Map<String, String> found = new TreeMap<>();
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
            found.put(each.getKey().topicPartition().toString(), each.getValue().map(Object::toString).orElse("ok"));
        }
        return found;
    }

    static String thrown(Runnable body) {
        try {
            body.run();
            return "nothing thrown";
        } catch (RuntimeException error) {
            return error.toString();
        }
    }

    static void configure(String group, String name, String value) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    static String offset(String topic, String group) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        ListShareGroupOffsetsSpec spec = new ListShareGroupOffsetsSpec().topicPartitions(List.of(partition));
        Map<TopicPartition, SharePartitionOffsetInfo> found =
                admin.listShareGroupOffsets(Map.of(group, spec)).partitionsToOffsetInfo(group).get();
        SharePartitionOffsetInfo info = found.get(partition);
        return info == null ? "no offset" : "start " + info.startOffset() + ", lag " + info.lag();
    }
}
