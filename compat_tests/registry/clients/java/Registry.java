/* Confluent's Java client of a schema registry, and Flink's coder of messages, at the registry whose URL is the first
 * argument; the second is USER:PASSWORD. Prints "ok NAME" for each check, then a message in hex a line; reads messages
 * in hex from standard input, and prints "read NUMBER" for each. An assertion that fails ends it with status 1. */

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Config;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.Metadata;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.entities.SchemaReference;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.flink.formats.avro.registry.confluent.ConfluentSchemaRegistryCoder;

class Registry {
    interface Asking {
        void ask() throws Exception;
    }

    static final String ORDER =
            "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"}%s]}";
    static final AvroSchema FIRST = new AvroSchema(String.format(ORDER, ""));
    static final AvroSchema SECOND =
            new AvroSchema(String.format(ORDER, ",{\"name\":\"note\",\"type\":\"string\",\"default\":\"\"}"));
    static final AvroSchema WRONG = new AvroSchema(String.format(ORDER, ",{\"name\":\"must\",\"type\":\"string\"}"));

    static void equal(Object wanted, Object found) {
        if (!wanted.equals(found)) throw new AssertionError("wanted " + wanted + ", found " + found);
    }

    static void refused(int code, Asking asking) throws Exception {
        try {
            asking.ask();
        } catch (RestClientException refusal) {
            equal(code, refusal.getErrorCode());
            return;
        }
        throw new AssertionError("not refused with " + code);
    }

    static CachedSchemaRegistryClient client(String url, String login) {
        return new CachedSchemaRegistryClient(
                url, 100, Map.of("basic.auth.credentials.source", "USER_INFO", "basic.auth.user.info", login));
    }

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0], login = arguments[1];
        CachedSchemaRegistryClient registry = client(url, login), other = client(url, login);
        versions(registry, other);
        System.out.println("ok versions");
        levels(registry);
        System.out.println("ok levels");
        references(registry, other);
        System.out.println("ok references");
        deletions(registry);
        System.out.println("ok deletions");
        refused(401, () -> client(url, "alice:wrong").getAllSubjects());
        System.out.println("ok logins");
        messages(registry);
    }

    static void versions(CachedSchemaRegistryClient registry, CachedSchemaRegistryClient other) throws Exception {
        int first = registry.register("orders-value", FIRST), second = registry.register("orders-value", SECOND);
        equal(first, other.register("orders-value", FIRST));
        equal(FIRST, other.getSchemaById(first));
        equal(SECOND, other.getSchemaBySubjectAndId("orders-value", second));
        equal(second, other.getId("orders-value", SECOND));
        equal(2, other.getVersion("orders-value", SECOND));
        equal(List.of(1, 2), registry.getAllVersions("orders-value"));
        equal(second, registry.getLatestSchemaMetadata("orders-value").getId());
        equal(Set.of("orders-value"), Set.copyOf(registry.getAllSubjectsById(first)));
        equal(1, registry.getAllVersionsById(first).size());
        equal(2, registry.getSchemas("orders", false, false).size());
        AvroSchema owned = SECOND.copy(new Metadata(Map.of(), Map.of("owner", "shop"), Set.of()), null);
        int third = registry.register("orders-value", owned);
        equal(third, registry.getLatestWithMetadata("orders-value", Map.of("owner", "shop"), false).getId());
    }

    static void levels(CachedSchemaRegistryClient registry) throws Exception {
        refused(40901, () -> registry.register("orders-value", WRONG));
        equal(false, registry.testCompatibility("orders-value", WRONG));
        equal(true, registry.testCompatibilityVerbose("orders-value", WRONG).toString().contains("must"));
        equal(true, registry.testCompatibility("orders-value", SECOND));
        registry.updateConfig("orders-value", new Config("FULL"));
        equal("FULL", registry.getConfig("orders-value").getCompatibilityLevel());
        registry.deleteConfig("orders-value");
        equal("BACKWARD", registry.getConfig(null).getCompatibilityLevel());
        equal("READWRITE", registry.getMode());
        registry.setMode("READONLY", "closed");
        refused(42205, () -> registry.register("closed", FIRST));
        registry.deleteMode("closed");
    }

    static void references(CachedSchemaRegistryClient registry, CachedSchemaRegistryClient other) throws Exception {
        List<SchemaReference> order = List.of(new SchemaReference("shop.Order", "orders-value", 1));
        AvroSchema either = new AvroSchema("[\"null\",\"shop.Order\"]", order, Map.of("shop.Order", FIRST.canonicalString()), null);
        AvroSchema found = (AvroSchema) other.getSchemaById(registry.register("either", either));
        equal(order, found.references());
        equal(either.rawSchema(), found.rawSchema());
        refused(42206, () -> registry.deleteSchemaVersion("orders-value", "1", false));
    }

    static void deletions(CachedSchemaRegistryClient registry) throws Exception {
        registry.register("gone", FIRST);
        equal(1, registry.deleteSchemaVersion("gone", "1", false));
        refused(40401, () -> registry.getLatestSchemaMetadata("gone"));
        equal(true, registry.getAllSubjects(true).contains("gone"));
        equal(List.of(1), registry.deleteSubject("gone", true));
        equal(false, registry.getAllSubjects(true).contains("gone"));
    }

    static void messages(CachedSchemaRegistryClient registry) throws Exception {
        ConfluentSchemaRegistryCoder coder = new ConfluentSchemaRegistryCoder("orders-value", registry);
        for (long number = 0; number < 100; number++) {
            GenericRecord order = new GenericData.Record(FIRST.rawSchema());
            order.put("id", number);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            coder.writeSchema(FIRST.rawSchema(), out);
            var encoder = EncoderFactory.get().directBinaryEncoder(out, null);
            new GenericDatumWriter<GenericRecord>(FIRST.rawSchema()).write(order, encoder);
            System.out.println(HexFormat.of().formatHex(out.toByteArray()));
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayInputStream in = new ByteArrayInputStream(HexFormat.of().parseHex(line));
            Schema schema = coder.readSchema(in);
            var decoder = DecoderFactory.get().directBinaryDecoder(in, null);
            System.out.println("read " + new GenericDatumReader<GenericRecord>(schema).read(null, decoder).get("id"));
        }
    }
}
