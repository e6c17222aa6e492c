// Prints the first COUNT messages of a group in their order.   node consumer.mjs SERVERS GROUP SITE COUNT

import { connect, read } from "./abcast.mjs";

const [servers, group, site, count] = process.argv.slice(2);
if (!count) {
  console.error("usage: node consumer.mjs SERVERS GROUP SITE COUNT");
  process.exit(2);
}
let printed = 0;
await new Promise((done) =>
  read(connect(servers), group, site, (fields, message) => {
    if (fields.kind !== "message" || printed === Number(count)) return;
    console.log(`${fields.seqno}\t${message.key}\t${message.value}`);
    if (++printed === Number(count)) done();
  }),
);
process.exit(0);
