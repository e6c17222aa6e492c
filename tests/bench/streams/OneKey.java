import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * The sequencer that a user of Kafka Streams would write: everything under one key, exactly once.
 *
 * <p>It reads abcast's FORWARD, drops a local seqno that is not above the sender's last, gives the others the next
 * number, and writes them to another topic. No membership, no takeover, no dead letters: a peer to measure beside.
 *
 * <p>Arguments: BOOTSTRAP IN OUT PARTITIONS RECORDS STATE_DIRECTORY. With RECORDS above 0 it ends after so many and
 * prints two rates (records/s), from its start and over the second half of them, and the CPU time of its process a
 * record of that half (µs). With 0 it goes on.
 */
public class OneKey {
  static final AtomicLong SEEN = new AtomicLong();
  static final String LAST = "last-local-seqno";
  static final String NEXT = "next-seqno";

  static class Numbering implements Processor<String, byte[], String, byte[]> {
    private ProcessorContext<String, byte[]> context;
    private KeyValueStore<String, Long> last;
    private KeyValueStore<String, Long> next;

    @Override
    public void init(ProcessorContext<String, byte[]> given) {
      context = given;
      last = given.getStateStore(LAST);
      next = given.getStateStore(NEXT);
    }

    @Override
    public void process(Record<String, byte[]> record) {
      String header = new String(record.headers().lastHeader("abcast").value(), StandardCharsets.US_ASCII);
      long localSeqno = Long.parseLong(header.split(" ")[3]);
      Long accepted = last.get(record.key());
      if (accepted == null || localSeqno > accepted) {
        last.put(record.key(), localSeqno);
        Long given = next.get("");
        long seqno = given == null ? 1 : given + 1;
        next.put("", seqno);
        record.headers().add("seqno", Long.toString(seqno).getBytes(StandardCharsets.US_ASCII));
        context.forward(record);
      }
      SEEN.incrementAndGet();
    }
  }

  static class Numberings implements ProcessorSupplier<String, byte[], String, byte[]> {
    @Override
    public Processor<String, byte[], String, byte[]> get() {
      return new Numbering();
    }

    @Override
    public Set<StoreBuilder<?>> stores() {
      return Set.of(store(LAST), store(NEXT));
    }
  }

  static StoreBuilder<KeyValueStore<String, Long>> store(String name) {
    var supplier = Stores.persistentKeyValueStore(name);
    return Stores.keyValueStoreBuilder(supplier, Serdes.String(), Serdes.Long()).withCachingEnabled();
  }

  static KafkaStreams streams(List<String> arguments) {
    StreamsBuilder builder = new StreamsBuilder();
    KStream<String, byte[]> forward =
        builder.stream(arguments.get(1), Consumed.with(Serdes.String(), Serdes.ByteArray()));
    if (Integer.parseInt(arguments.get(3)) > 1) {
      forward = forward.repartition(
          Repartitioned.with(Serdes.String(), Serdes.ByteArray()).withNumberOfPartitions(1).withName("one"));
    }
    forward.process(new Numberings()).to(arguments.get(2), Produced.with(Serdes.String(), Serdes.ByteArray()));
    boolean isBacklog = Long.parseLong(arguments.get(4)) > 0;
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-of-" + arguments.get(2));
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments.get(0));
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments.get(5));
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(StreamsConfig.producerPrefix("linger.ms"), isBacklog ? "5" : "0");
    settings.put(StreamsConfig.producerPrefix("batch.size"), isBacklog ? "500000" : "16384");
    settings.put(StreamsConfig.producerPrefix("compression.type"), "none");
    return new KafkaStreams(builder.build(), settings);
  }

  public static void main(String[] given) throws InterruptedException {
    List<String> arguments = List.of(given);
    long records = Long.parseLong(arguments.get(4));
    KafkaStreams streams = streams(arguments);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    long started = System.nanoTime();
    streams.start();
    long seen = 0;
    long warm = 0;
    long middle = started;
    long used = 0;
    while (records == 0 || (seen = SEEN.get()) < records) {
      if (warm == 0 && records > 0 && seen >= records / 2) {
        warm = seen;
        middle = System.nanoTime();
        used = cpu();
      }
      Thread.sleep(1);
    }
    long last = System.nanoTime();
    long later = seen - warm;
    System.out.printf("rates %.0f %.0f %.1f%n",
        seen / ((last - started) / 1e9), later / ((last - middle) / 1e9), (cpu() - used) / 1e3 / later);
    System.exit(0);
  }

  static long cpu() {
    return ProcessHandle.current().info().totalCpuDuration().orElseThrow().toNanos();
  }
}
