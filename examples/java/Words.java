import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import org.sqlite.SQLiteConfig;

/**
 * Java with sqlite-jdbc, which brings a SQLite of its own.
 *
 * Look out: loading extensions is off until SQLiteConfig allows it, and is allowed only for the connection that loads.
 * The path must be absolute, or in LD_LIBRARY_PATH. The extension stays for the whole process.
 *
 *   java -cp sqlite-jdbc.jar examples/java/Words.java LIBRARY POOL
 */
public class Words {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 2) {
            throw new IllegalArgumentException("usage: Words LIBRARY POOL");
        }
        SQLiteConfig config = new SQLiteConfig();
        config.enableLoadExtension(true);
        try (Connection loader = DriverManager.getConnection("jdbc:sqlite::memory:", config.toProperties());
                var load = loader.prepareStatement("SELECT load_extension(?)")) {
            load.setString(1, arguments[0]);
            load.execute();
        }
        String url = "jdbc:sqlite:file:" + arguments[1] + "?vfs=hardpack";
        try (Connection db = DriverManager.getConnection(url);
                Statement statement = db.createStatement()) {
            statement.executeUpdate("INSERT INTO words VALUES('java', 1)");
            try (ResultSet rows = statement.executeQuery("SELECT count(*) FROM words")) {
                rows.next();
                System.out.println(rows.getInt(1) + " words");
            }
        }
    }
}
