// Brings the page up to date: asks for its body every two seconds, and replaces the sections that have changed.
// Without an answer it says so, and since when: an old figure must not look like a new one.
"use strict";

const EVERY_MS = 2000;
const PATIENCE_MS = 8000;
const body = document.getElementById("body");
const connection = document.getElementById("connection");
let answeredAt = Date.now();

function replaced(html) {
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
      const same = section.querySelector(`#${CSS.escape(details.id)}`);
      if (same) same.open = details.open;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
    old.replaceChildren(...section.childNodes);
    [...old.querySelectorAll(".scroll")].forEach((table, n) => (table.scrollLeft = scrolled[n] || 0));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }
}

async function refresh() {
  try {
    const answer = await fetch(body.dataset.from, { signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
    if (answer.status === 401) location.reload(); // signed out: the page leads to the login
    if (!answer.ok) throw new Error(`Airflow answers ${answer.status}`);
    replaced((await answer.json()).html);
    answeredAt = Date.now();
    connection.hidden = true;
  } catch (error) {
    const seconds = Math.round((Date.now() - answeredAt) / 1000);
    connection.textContent = `STALE: no answer from Airflow for ${seconds} s (${error.message}). Nothing below is known to be so now.`;
    connection.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 5 * EVERY_MS : EVERY_MS);
}

if (body.dataset.from) setTimeout(refresh, EVERY_MS);
