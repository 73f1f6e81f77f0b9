import java.io.ByteArrayInputStream;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.Base64;
import java.util.Scanner;

/** Prints the name in each certificate of standard input, one of base64 a line, as base64. */
public class PrintName {
    public static void main(String[] args) throws Exception {
        CertificateFactory factory = CertificateFactory.getInstance("X.509");
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            byte[] data = Base64.getDecoder().decode(lines.nextLine());
            X509Certificate each = (X509Certificate) factory.generateCertificate(new ByteArrayInputStream(data));
            String name = each.getSubjectX500Principal().getName();
            System.out.println(Base64.getEncoder().encodeToString(name.getBytes("UTF-8")));
        }
    }
}
