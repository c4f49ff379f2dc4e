// A server of the generation before extensions (2025-11-25, core Tasks), on the official SDK for Node.
//
// Its tools are those of legacy_python.py, and so are its two ways to run, and its `/witness`:
//
// - `node server.mjs --installed FOLDER http` prints one line of JSON once it listens.
// - `node server.mjs --installed FOLDER stdio` speaks over stdin and stdout.
//
// FOLDER is where `npm install` has put what package.json names: it is not beside this file. With
// `--any-session` a task is known in each session, and so are answers, as where replicas share a store.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    installed: { type: 'string' },
    'poll-interval-ms': { type: 'string', default: '50' },
    'json-response': { type: 'boolean', default: false },
    'any-session': { type: 'boolean', default: false },
  },
});
const load = createRequire(join(resolve(options.installed), 'package.json'));
const { z } = load('zod');
const { McpServer } = load('@modelcontextprotocol/sdk/server/mcp.js');
const { StdioServerTransport } = load('@modelcontextprotocol/sdk/server/stdio.js');
const { StreamableHTTPServerTransport } = load('@modelcontextprotocol/sdk/server/streamableHttp.js');
const { InMemoryTaskMessageQueue, InMemoryTaskStore } = load('@modelcontextprotocol/sdk/experimental/tasks');
const { CreateMessageResultSchema, ElicitResultSchema } = load('@modelcontextprotocol/sdk/types.js');

const POLL_INTERVAL_MS = Number(options['poll-interval-ms']);
const ANSWER_LIMIT_MS = 600_000; // the SDK gives a client 60 s to answer
const NAME_FORM = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
const QUESTION = {
  messages: [{ role: 'user', content: { type: 'text', text: '2 + 2?' } }],
  maxTokens: 16,
};

// ── tools ──

const milliseconds = z.number().int().min(0).optional();
const OF_TASKS = { duration_ms: milliseconds, hint_ms: milliseconds, ttl_ms: milliseconds };
const OF_FOLLOWED = { list: z.boolean().optional(), cancel: z.boolean().optional(), ttl_ms: milliseconds };

const text = (value, isError = false) => ({ content: [{ type: 'text', text: value }], isError });
const structured = (value) => ({
  content: [{ type: 'text', text: JSON.stringify(value) }],
  structuredContent: value,
});
const said = ({ action, content }) =>
  action === 'accept' ? content.name : { decline: 'declined', cancel: 'cancelled' }[action];

/** A task at work: what its tool knows of it, and can do with it. */
class Running {
  constructor(server, task, args, extra) {
    Object.assign(this, { server, task, args, extra, unanswered: 0 });
  }

  get id() {
    return this.task.taskId;
  }

  rest() {
    return sleep(this.args.duration_ms ?? 50);
  }

  status(status, message) {
    return this.extra.taskStore.updateTaskStatus(this.id, status, message);
  }

  /** Ask the client something; the task works again once nothing is unanswered. */
  async ask(method, params, schema) {
    this.unanswered += 1;
    const ways = { relatedTask: { taskId: this.id }, timeout: ANSWER_LIMIT_MS };
    const answer = await this.extra.sendRequest({ method, params }, schema, ways);
    this.unanswered -= 1;
    if (!this.unanswered) await this.status('working');
    return answer;
  }

  async askName(message) {
    const params = { mode: 'form', message, requestedSchema: NAME_FORM };
    return said(await this.ask('elicitation/create', params, ElicitResultSchema));
  }

  /** To the stream of the session, or, with the task's mark, to that of `tasks/result`. */
  progress(step) {
    const progressToken = this.extra._meta?.progressToken;
    if (progressToken === undefined) throw new Error('who wants progress gives a token');
    const params = { progressToken, progress: step, total: 3, message: `step ${step}` };
    const ways = this.args.where === 'result' ? { relatedTask: { taskId: this.id } } : {};
    return this.server.server.notification({ method: 'notifications/progress', params }, ways);
  }
}

async function slow(running) {
  await running.status('working', 'resting');
  await running.rest();
  return text('rested');
}

async function must(running) {
  await running.rest();
  return structured({ n: running.args.n ?? 1 });
}

async function fails(running) {
  const how = running.args.how ?? 'message';
  const result = text('the tool said no', true);
  if (how === 'completed') return result;
  if (how === 'message') {
    await running.status('failed', 'quota exceeded');
  } else {
    await running.status('working', 'the tool failed'); // a result cannot come with a message of its own
    await running.extra.taskStore.storeTaskResult(running.id, 'failed', result);
  }
  return undefined;
}

async function asks(running) {
  return text(`Hello, ${await running.askName('What is your name?')}`);
}

/** Over the stream of the session, with the task's mark. Nobody is asked while there is no such stream. */
async function asksAside(running) {
  const mark = { 'io.modelcontextprotocol/related-task': { taskId: running.id } };
  const params = { mode: 'form', message: 'What is your name?', requestedSchema: NAME_FORM, _meta: mark };
  const request = { method: 'elicitation/create', params };
  const answer = await running.server.server.request(request, ElicitResultSchema, { timeout: ANSWER_LIMIT_MS });
  return text(`Hello, ${said(answer)}`);
}

async function asksTwice(running) {
  const ask = (whose) => running.askName(`What is the name of your ${running.args.alike ? 'pet' : whose}?`);
  if (running.args.together ?? true) {
    return text((await Promise.all([ask('cat'), ask('dog')])).join(' and '));
  }
  const cat = await ask('cat');
  await running.rest();
  return text(`${cat} and ${await ask('dog')}`);
}

/** Two branches that know nothing of each other: one asks twice, the other once, `stagger_ms` later. */
async function asksInBranches(running) {
  const ask = (kind) => running.askName(`What is the name of your ${kind}?`);
  const twice = async () => {
    const cat = await ask('cat');
    await running.rest();
    return `${cat}, ${await ask('kitten')}`;
  };
  const once = async () => {
    await sleep(running.args.stagger_ms ?? 0);
    return ask('dog');
  };
  return text((await Promise.all([twice(), once()])).join(' and '));
}

async function samples(running) {
  const answer = await running.ask('sampling/createMessage', QUESTION, CreateMessageResultSchema);
  return text(answer.content.type === 'text' ? answer.content.text : answer.content.type);
}

async function progresses(running) {
  for (const step of [1, 2, 3]) {
    await running.rest();
    await running.progress(step);
  }
  return text('progressed');
}

async function crashes(running) {
  await running.rest();
  process.exit(1);
}

// ── the client as the one who has tasks ──

const elicit = (server, ways) =>
  server.server.experimental.tasks.elicitInputStream(
    { message: 'What is your name?', requestedSchema: NAME_FORM },
    ways,
  );
const sample = (server, ways) => server.server.experimental.tasks.createMessageStream(QUESTION, ways);

/** Have the client make a task, follow it to its end as the SDK does, and tell all that it said. */
async function follow(server, request, args, ways) {
  const { tasks } = server.server.experimental;
  const { task, ...later } = ways;
  const told = { polled: [] };
  for await (const message of request(server, ways)) {
    if (message.type === 'taskCreated') {
      told.created = message.task;
      if (args.list) told.listed = (await tasks.listTasks(undefined, later)).tasks;
      if (args.cancel) await tell(told, 'cancelled', tasks.cancelTask(message.task.taskId, later));
    } else if (message.type === 'taskStatus') {
      told.polled.push(message.task.status);
    } else if (message.type === 'result') {
      told.result = message.result;
    } else {
      told.result_error = { code: message.error.code, message: message.error.message };
    }
  }
  return structured(told);
}

async function tell(told, what, reply) {
  try {
    told[what] = await reply;
  } catch (error) {
    told[`${what}_error`] = { code: error.code, message: error.message };
  }
}

const followInside = (request) => async (running) => {
  await running.status('input_required');
  const ways = { task: { ttl: 60_000 }, relatedTask: { taskId: running.id }, timeout: ANSWER_LIMIT_MS };
  return follow(running.server, request, {}, ways);
};

// ── the server ──

/** As one in a database would be, to which a task's ID is enough. */
class SharedTaskStore extends InMemoryTaskStore {
  createTask(wishes, requestId, request) { return super.createTask(wishes, requestId, request); }
  getTask(id) { return super.getTask(id); }
  updateTaskStatus(id, status, message) { return super.updateTaskStatus(id, status, message); }
  storeTaskResult(id, status, result) { return super.storeTaskResult(id, status, result); }
  getTaskResult(id) { return super.getTaskResult(id); }
  listTasks(cursor) { return super.listTasks(cursor); }
}

const taskStore = options['any-session'] ? new SharedTaskStore() : new InMemoryTaskStore();
const taskMessageQueue = new InMemoryTaskMessageQueue();

function build() {
  const server = new McpServer(
    { name: 'legacy-node', version: '1' },
    {
      capabilities: { tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
      taskStore,
      taskMessageQueue,
    },
  );
  const task = (name, work, more = {}) => addTask(server, name, work, more);
  const plainly = (name, inputSchema, work) => server.registerTool(name, { inputSchema }, work);
  const followed = (request) => (args, extra) => {
    const ways = { task: { ttl: args.ttl_ms }, relatedRequestId: extra.requestId, timeout: ANSWER_LIMIT_MS };
    return follow(server, request, args, ways);
  };

  plainly('plain', {}, async () => text('plain'));
  task('slow', slow, { support: 'optional', input: { finish_first: z.boolean().optional() } });
  task('must', must, { input: { n: z.number().int().optional() }, output: { n: z.number().int() } });
  task('fails', fails, { input: { how: z.enum(['message', 'result', 'completed']).optional() } });
  task('asks', asks);
  task('asks_aside', asksAside);
  task('asks_twice', asksTwice, {
    input: { together: z.boolean().optional(), alike: z.boolean().optional() },
  });
  task('asks_in_branches', asksInBranches, { input: { stagger_ms: milliseconds } });
  task('samples', samples);
  task('progresses', progresses, { input: { where: z.enum(['session', 'result']).optional() } });
  task('immediate', slow, { immediate: 'Started; the result comes later.' });
  task('crashes', crashes);
  plainly('asks_as_task', OF_FOLLOWED, followed(elicit));
  plainly('samples_as_task', OF_FOLLOWED, followed(sample));
  task('asks_as_task_inside', followInside(elicit));
  task('samples_as_task_inside', followInside(sample));
  return server;
}

function addTask(server, name, work, { support = 'required', input = {}, output, immediate }) {
  server.experimental.tasks.registerToolTask(
    name,
    { inputSchema: { ...OF_TASKS, ...input }, outputSchema: output, execution: { taskSupport: support } },
    {
      async createTask(args, extra) {
        const wishes = {
          ttl: args.ttl_ms ?? extra.taskRequestedTtl,
          pollInterval: args.hint_ms ?? POLL_INTERVAL_MS,
        };
        const task = await extra.taskStore.createTask(wishes);
        const over = perform(work, new Running(server, task, args, extra));
        if (args.finish_first) {
          await over;
          return { task: await taskStore.getTask(task.taskId) };
        }
        return immediate ? { task, _meta: { 'io.modelcontextprotocol/model-immediate-response': immediate } } : { task };
      },
      getTask: (args, extra) => extra.taskStore.getTask(extra.taskId),
      getTaskResult: (args, extra) => extra.taskStore.getTaskResult(extra.taskId),
    },
  );
}

/** Work to its end, whatever that is. What fails after it, such as a cancelled task's result, is nobody's. */
async function perform(work, running) {
  const store = (status, result) => running.extra.taskStore.storeTaskResult(running.id, status, result);
  try {
    const result = await work(running);
    if (result) await store('completed', result);
  } catch (error) {
    await store('failed', text(error.message, true)).catch((late) => console.error(String(late)));
  }
}

// ── transports ──

const witnessed = [];

function seen(request, message) {
  const { method = null, id = null, params = null, result = null, error = null } = message ?? {};
  const entry = {
    verb: request.method,
    at: Number(process.hrtime.bigint()) / 1e9, // on Linux the same clock as Python's time.monotonic()
    session_id: request.headers['mcp-session-id'] ?? null,
    http_status: null,
    ...{ method, id, params, result, error },
  };
  witnessed.push(entry);
  return entry;
}

function watch(response, entry) {
  const writeHead = response.writeHead.bind(response);
  response.writeHead = (status, ...rest) => {
    entry.http_status = status;
    return writeHead(status, ...rest);
  };
}

async function body(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

const sessions = new Map();
const builds = []; // with the tools of a session's calls, which outlive the session
const IDS_OF_ONE = 1_000_000;

/** Whose question an answer is for: IDs tell, where each has its own. */
function asker(message) {
  if (!options['any-session'] || message?.method !== undefined) return undefined;
  return builds[Math.floor(message?.id / IDS_OF_ONE)]?.server;
}

async function connected() {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    enableJsonResponse: options['json-response'],
    onsessioninitialized: (id) => sessions.set(id, transport),
  });
  transport.onclose = () => sessions.delete(transport.sessionId);
  const built = build();
  if (options['any-session']) built.server._requestMessageId = builds.length * IDS_OF_ONE;
  builds.push(built);
  await built.connect(transport);
  return transport;
}

function refuse(response, status, code, message) {
  response.writeHead(status, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify({ jsonrpc: '2.0', error: { code, message }, id: null }));
}

async function serve(request, response) {
  if (request.url === '/witness') {
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(witnessed));
    return;
  }
  const message = parsed(await body(request));
  watch(response, seen(request, message));
  const id = request.headers['mcp-session-id'];
  if (request.method === 'POST' && !message) return refuse(response, 400, -32700, 'Parse error');
  if (id && !sessions.has(id)) return refuse(response, 404, -32001, 'Session not found');
  if (!id && message?.method !== 'initialize') return refuse(response, 400, -32000, 'No valid session ID');
  const other = id && asker(message);
  if (other) {
    other.transport.onmessage(message);
    response.writeHead(202).end();
    return;
  }
  await (id ? sessions.get(id) : await connected()).handleRequest(request, response, message);
}

function listen() {
  process.stdin.resume();
  const http = createServer((request, response) =>
    serve(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    }),
  );
  http.listen(0, '127.0.0.1', () => {
    console.log(JSON.stringify({ url: `http://127.0.0.1:${http.address().port}/mcp` }));
  });
}

process.stdin.on('end', () => process.exit(0)); // the death of the parent takes us along, whatever tasks there are
if (positionals[0] === 'stdio') {
  await build().connect(new StdioServerTransport());
} else {
  listen();
}
