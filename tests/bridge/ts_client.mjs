// A host on the official SDK for TypeScript, which plays turns.
//
// `node ts_client.mjs OPTIONS` takes one JSON object:
//
//   installed   the folder with node_modules
//   bridge      the command that starts the server, a list
//   turns       [{tool, arguments, until, most}], each called until what comes back has a text, or so often
//   limit_ms    the limit of each call; the SDK's own is 60,000
//   patient     whether progress starts the limit anew (onprogress and resetTimeoutOnProgress)
//   answers     what a form is answered, or null for a host that cannot be asked
//
// It prints one line of JSON for each thing that it saw: {listed: [name]}, {asked: message},
// {shown: text, is_error}, {failed: message, code}, and at the end {progressed: how often}.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const options = JSON.parse(process.argv[2]);
const load = createRequire(join(options.installed, 'package.json'));
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { StdioClientTransport } = load('@modelcontextprotocol/sdk/client/stdio.js');
const { ElicitRequestSchema } = load('@modelcontextprotocol/sdk/types.js');

const say = (seen) => console.log(JSON.stringify(seen));
let reference = null;
let progressed = 0;

const client = new Client(
  { name: 'ts-client', version: '1' },
  { capabilities: options.answers ? { elicitation: { form: {} } } : {} },
);
if (options.answers) {
  client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
    say({ asked: params.message });
    return { action: 'accept', content: options.answers };
  });
}
const [command, ...args] = options.bridge;
await client.connect(new StdioClientTransport({ command, args, stderr: 'inherit' }), { timeout: 60_000 });
say({ listed: (await client.listTools({}, { timeout: 60_000 })).tools.map((tool) => tool.name) });

/** Calls a tool once. Returns the text that came back. */
async function play(turn) {
  const filled = Object.entries(turn.arguments).map(([name, value]) => [
    name,
    value === '$reference' ? reference : value,
  ]);
  const params = { name: turn.tool, arguments: Object.fromEntries(filled) };
  const onprogress = () => {
    progressed += 1;
  };
  const patience = options.patient ? { onprogress, resetTimeoutOnProgress: true } : {};
  const limit = options.limit_ms ? { timeout: options.limit_ms } : {};
  try {
    const result = await client.callTool(params, undefined, { ...limit, ...patience });
    const shown = result.content.map((part) => part.text ?? '').join('\n');
    const found = shown.match(/\b[0-9a-f]{32}\b/g);
    reference = found?.at(-1) ?? reference;
    say({ shown, is_error: result.isError ?? false });
    return shown;
  } catch (error) {
    say({ failed: error.message, code: error.code ?? null });
    return error.message;
  }
}

for (const turn of options.turns) {
  for (let times = 0; times < turn.most; times += 1) {
    if ((await play(turn)).includes(turn.until)) break;
  }
}
say({ progressed });
await client.close();
