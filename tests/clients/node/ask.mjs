// An MCP client without a will of its own: connects as the first line of stdin says, then does what each further line
// says, and answers each with one line. How the lines look is told in ../asking.py.
// Which client: sdk = the 1.x line, client = the 2.x line, which finds out by itself what protocol the server knows.
import { createInterface } from "node:readline";

const which = process.argv[2];
const old = which === "sdk";
const { Client } = old
  ? await import("@modelcontextprotocol/sdk/client/index.js")
  : await import("@modelcontextprotocol/client");
const { StdioClientTransport } = old
  ? await import("@modelcontextprotocol/sdk/client/stdio.js")
  : await import("@modelcontextprotocol/client/stdio");
const { StreamableHTTPClientTransport } = old
  ? await import("@modelcontextprotocol/sdk/client/streamableHttp.js")
  : await import("@modelcontextprotocol/client");

const client = new Client({ name: "ask.mjs", version: "1" }, { versionNegotiation: { mode: "auto" } });

async function connect({ command, args, env, url, headers }) {
  await client.connect(
    command
      ? new StdioClientTransport({ command, args, env })
      : new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }),
  );
  const protocol = client.getNegotiatedProtocolVersion?.(); // the 1.x line keeps it to itself
  return { server: client.getServerVersion(), instructions: client.getInstructions(), protocol };
}

async function call({ tool, args }) {
  const progress = [];
  const options = { onprogress: (told) => progress.push(told) };
  const asked = { name: tool, arguments: args };
  const result = await (old ? client.callTool(asked, undefined, options) : client.callTool(asked, options));
  return {
    error: result.isError ?? false,
    structured: result.structuredContent,
    text: result.content.map((part) => part.text).join(""),
    progress,
  };
}

const doing = {
  connect,
  call,
  tools: async () => ({ tools: (await client.listTools()).tools }),
  resources: async () => ({
    resources: (await client.listResources()).resources,
    templates: (await client.listResourceTemplates()).resourceTemplates,
  }),
  read: async ({ uri }) => ({ contents: (await client.readResource({ uri })).contents }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { what, ...how } = JSON.parse(line);
  let answer;
  try {
    answer = await doing[what](how);
  } catch (error) {
    answer = { failed: String(error.message ?? error), code: error.code };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await client.close();
