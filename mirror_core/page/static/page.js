// Brings the page up to date: asks for its body every two seconds, and replaces the sections that have changed.
// Without an answer it says so, and since when: an old figure must not look like a new one.
"use strict";

const INTERVAL_MS = 2000;
const TIMEOUT_MS = 8000;
const body = document.getElementById("body");
const connection = document.getElementById("connection");
let updatedAt = Date.now();

function replaceSections(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html; // made by the server from escaped text; the policy of the page runs no script in it
  const before = [...body.children].map((section) => section.id).join();
  const after = [...fresh.content.children].map((section) => section.id).join();
  if (before !== after) {
    body.replaceChildren(...fresh.content.children);
    return;
  }
  for (const section of [...fresh.content.children]) {
    const old = document.getElementById(section.id);
    if (old.innerHTML === section.innerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    for (const details of old.querySelectorAll("details[id]")) {
      const other = section.querySelector(`#${CSS.escape(details.id)}`);
      if (other) other.open = details.open;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
    old.replaceChildren(...section.childNodes);
    [...old.querySelectorAll(".scroll")].forEach((table, n) => (table.scrollLeft = scrolled[n] || 0));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

async function refresh() {
  try {
    const response = await fetch(body.dataset.from, { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store" });
    if (response.status === 401) location.reload(); // signed out: the page leads to the login
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    replaceSections((await response.json()).html);
    updatedAt = Date.now();
    connection.hidden = true;
  } catch (error) {
    const seconds = Math.round((Date.now() - updatedAt) / 1000);
    connection.textContent = `STALE: no answer from the server for ${seconds} s (${error.message}). Nothing below is known to be so now.`;
    connection.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS);
}

if (body.dataset.from) setTimeout(refresh, INTERVAL_MS);
