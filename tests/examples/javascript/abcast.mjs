// What a program in JavaScript needs of abcast: the header of a record, and the reading rule (docs/records.md).

import { randomUUID } from "node:crypto";
import { Kafka, logLevel } from "kafkajs";

export function connect(servers) {
  return new Kafka({ brokers: servers.split(","), logLevel: logLevel.ERROR });
}

// The fields of the header `abcast` of a DATA record; "-" where one has no value.
export function fieldsOf(message) {
  const all = message.headers.abcast.toString().split(" ");
  const [, kind, incarnation, localSeqno, seqno, epoch] = all;
  return { kind, incarnation, localSeqno, seqno: Number(seqno), epoch: Number(epoch), count: Number(all[10] ?? 1) };
}

// The messages of a pack, one by one; any other record as it is.
function* messagesOf(fields, message) {
  if (fields.kind !== "messages") return yield [fields, message];
  let at = 1 + 4 * fields.count;
  for (let n = 0; n < fields.count; n++) {
    const value = message.value.subarray(at, at + message.value.readUInt32BE(1 + 4 * n));
    const numbers = { localSeqno: Number(fields.localSeqno) + n, seqno: fields.seqno + n };
    yield [{ ...fields, ...numbers, kind: "message" }, { ...message, value }];
    at += value.length;
  }
}

// Calls `take(fields, message)` for all of the group that counts, in the order, from the first one on.
export async function read(kafka, group, site, take) {
  const consumer = kafka.consumer({ groupId: `reader-${randomUUID()}` });
  let epoch = 0;
  let last = 0;
  await consumer.connect();
  await consumer.subscribe({ topic: `abcast.${group}.data.${site}`, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ message }) => {
      const fields = fieldsOf(message);
      if (fields.epoch < epoch) return; // a sequencer that was replaced has left it behind
      epoch = fields.epoch;
      if (fields.kind === "epoch" || fields.seqno !== last + 1) return; // no message; or a repeat
      last = fields.seqno + fields.count - 1;
      for (const each of messagesOf(fields, message)) await take(...each);
    },
  });
  return consumer;
}
