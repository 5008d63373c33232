// Builds the dashboard from src/ into the folder named on the command line, dist/
// by default. The result depends on the sources and the lock file alone.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist");
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/app.tsx", style: "src/style.css" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["safari17", "chrome120", "firefox120"], // WKWebView of macOS 14
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "eof",
  logLevel: "warning",
});
await copyFile(join(here, "src/index.html"), join(out, "index.html"));
