import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.security.PasswordEncoder;

/** Encodes a password by Apache Kafka 3.9, and decodes what stands in the further arguments. */
public class PasswordEncoderProgram {
    public static void main(String[] args) throws Exception {
        PasswordEncoder encoder = PasswordEncoder.encrypting(
            new Password(args[0]), args[1].isEmpty() ? null : args[1], args[2], Integer.parseInt(args[3]), 4096);
        System.out.println(encoder.encode(new Password(args[4])));
        for (int i = 5; i < args.length; i++) {
            System.out.println(encoder.decode(args[i]).value());
        }
    }
}
