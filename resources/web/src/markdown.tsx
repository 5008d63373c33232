// Answers of models are markdown; whatever HTML they contain is made harmless.
import DOMPurify from "dompurify";
import { marked } from "marked";
import { useLayoutEffect, useRef } from "preact/hooks";
import { copy } from "./ui";

const escaped = (text: string) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
marked.use({ gfm: true, breaks: true, renderer: { html: ({ text }) => escaped(text) } }); // HTML of an answer is shown as it is written

export function html(text: string): string {
  return DOMPurify.sanitize(marked.parse(text, { async: false }) as string, {
    FORBID_TAGS: ["style", "form", "input", "button", "iframe", "img", "svg", "video", "audio"], FORBID_ATTR: ["style", "id", "class"],
  });
}

export function Markdown(p: { text: string }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const el = box.current!;
    el.innerHTML = html(p.text);
    for (const a of el.querySelectorAll("a")) {
      a.target = "_blank";
      a.rel = "noreferrer noopener";
    }
    for (const pre of el.querySelectorAll("pre")) {
      pre.tabIndex = 0; // it scrolls
      const b = document.createElement("button");
      b.className = "small code-copy";
      b.textContent = "Copy";
      b.onclick = async () => {
        await copy(pre.querySelector("code")?.textContent ?? "");
        b.textContent = "Copied";
        setTimeout(() => { b.textContent = "Copy"; }, 1200);
      };
      pre.before(b);
    }
  }, [p.text]);
  return <div class="markdown" ref={box} />;
}
