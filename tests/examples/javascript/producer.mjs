// Broadcasts each line of standard input; ends when all are ordered.   node producer.mjs SERVERS GROUP SITE/NAME

import { createInterface } from "node:readline";
import { connect, read } from "./abcast.mjs";

const RESEND_AFTER_MS = 20_000;
const [servers, group, member] = process.argv.slice(2);
if (!member) {
  console.error("usage: node producer.mjs SERVERS GROUP SITE/NAME < FILE");
  process.exit(2);
}
const site = member.split("/")[0];
const kafka = connect(servers);
// Higher than that of every earlier start under this name: the time in units of 10 ns.
const incarnation = String(BigInt(Date.now()) * 100_000n);

// What was sent and is not ordered yet, by its local seqno: 1, 2, 3 …
const pending = [];
for await (const line of createInterface({ input: process.stdin })) {
  const header = `2 message ${incarnation} ${pending.length + 1}`;
  pending.push({ key: member, value: line, headers: { abcast: header } });
}
const total = pending.length;
if (total === 0) process.exit(0);

// One request at a time, and idempotent: so the messages stand in FORWARD in their order.
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
const send = () => producer.send({ topic: `abcast.${group}.forward.${site}`, messages: [...pending] });

let acknowledged = 0;
const ordered = new Promise((done) =>
  read(kafka, group, site, (fields, message) => {
    if (String(message.key) !== member || fields.incarnation !== incarnation) return;
    // The sequencer takes a sender's messages in order: with this one, all before it are ordered, too.
    pending.splice(0, Number(fields.localSeqno) - acknowledged);
    acknowledged = Number(fields.localSeqno);
    if (pending.length === 0) done(fields.seqno);
  }),
);
await send();
// What does not come back is sent again, all of it and in order; what was ordered already is dropped.
setInterval(() => send().catch(console.error), RESEND_AFTER_MS);
console.log(`${total} messages ordered, last seqno ${await ordered}`);
process.exit(0);
