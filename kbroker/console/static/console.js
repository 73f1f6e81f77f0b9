// What the console's pages do besides reading: dialogs, keys, live records, the theme. Pages can be read without it.

const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- dialogs: a button with data-dialog opens one, data-close closes the one it is in

function openDialog(dialog, from) {
  for (const [name, value] of Object.entries(from?.dataset ?? {})) {
    if (!name.startsWith("set")) continue;
    const field = name.slice(3).toLowerCase();
    for (const each of all(`[data-field="${field}"]`, dialog)) {
      if ("value" in each) each.value = value;
      else each.textContent = value;
    }
  }
  const subject = document.querySelector("[data-subject]");
  for (const each of subject ? all("[data-of-subject]", dialog) : []) each.value = subject.textContent;
  for (const each of all(".refused", dialog)) each.textContent = "";
  for (const each of all("[data-confirm]", dialog)) checkConfirm(each);
  dialog.showModal();
  const first = ["[autofocus]", "form input:not([type=hidden]), form textarea", "button"];
  first.map((each) => dialog.querySelector(each)).find(Boolean)?.focus();
}

function checkConfirm(input) {
  const name = input.form.querySelector(`[name="${input.dataset.confirm}"]`)?.value ?? "";
  const button = input.form.querySelector("button[type=submit]");
  if (button) button.disabled = input.value.trim() !== name.trim() || !name;
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  if (!target) return;
  const opener = target.closest("[data-dialog]");
  if (opener) {
    const dialog = byId(opener.dataset.dialog);
    if (dialog) openDialog(dialog, opener);
    return;
  }
  const closer = target.closest("[data-close]");
  if (closer) {
    closer.closest("dialog")?.close();
    return;
  }
  const copier = target.closest("[data-copy]");
  if (copier) {
    copyText(copier);
    return;
  }
  if (target.closest("[data-follow]")) {
    follow();
    return;
  }
  const canceller = target.closest("[data-cancel]");
  if (canceller) {
    cancelSearch(canceller);
    return;
  }
  if (target.closest("[data-theme-toggle]")) {
    toggleTheme();
    return;
  }
  if (target instanceof HTMLDialogElement) target.close(); // its backdrop
  const row = target.closest("tr[data-open]");
  if (row && !target.closest("a, button, input") && !window.getSelection()?.toString()) {
    row.querySelector("a")?.click();
  }
});

document.addEventListener("input", (event) => {
  const input = event.target;
  if (input instanceof HTMLInputElement && input.dataset.confirm) checkConfirm(input);
});

document.addEventListener("change", (event) => {
  const input = event.target;
  if (input instanceof HTMLInputElement && input.type === "file" && input.dataset.into) readFile(input);
  if (input instanceof HTMLSelectElement && input.dataset.submits !== undefined) input.form?.requestSubmit();
  if (input instanceof HTMLSelectElement) showWhen(input.form);
});

// A field with data-when="to=time" is there while the form's field "to" is "time": else it would count for nothing.
function showWhen(form) {
  for (const each of form ? all("[data-when]", form) : []) {
    const [name, value] = each.dataset.when.split("=");
    each.hidden = form.elements[name]?.value !== value;
  }
}

async function readFile(input) {
  const file = input.files?.[0];
  const into = byId(input.dataset.into);
  if (!file || !into) return;
  if (file.name.endsWith(".avsc") || file.name.endsWith(".json")) {
    into.value = await file.text();
  } else {
    const bytes = new Uint8Array(await file.arrayBuffer());
    let text = "";
    for (const each of bytes) text += String.fromCharCode(each);
    into.value = btoa(text);
  }
}

async function copyText(button) {
  const text = byId(button.dataset.copy)?.textContent ?? "";
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

// -- theme: the server knows it by a cookie, so that no page flashes

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `kbroker-console-theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
}

// -- keys

const places = { o: "/", t: "/topics", g: "/groups", x: "/transactions", c: "/cluster", s: "/configs", a: "/acls" };
let going = 0;
let chosen = ""; // the link of the row that was chosen by keys

function rows() {
  return all("main tbody tr").filter((row) => row.querySelector("a") && row.offsetParent);
}

function moveRow(by) {
  const found = rows();
  if (!found.length) return;
  const now = found.findIndex((row) => row.classList.contains("on"));
  const next = found[Math.min(Math.max(now + by, 0), found.length - 1)];
  for (const row of found) row.classList.remove("on");
  next.classList.add("on");
  chosen = next.querySelector("a").href;
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (typing) {
    if (event.key === "Escape" && !event.target.closest("dialog")) {
      event.preventDefault(); // which would empty a field of a search: what it has found is to be gone through
      event.target.blur();
    }
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (going) {
    clearTimeout(going);
    going = 0;
    if (places[event.key]) location.href = places[event.key];
    return;
  }
  const search = document.querySelector("[data-search]");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "g") {
    going = setTimeout(() => { going = 0; }, 1500);
  } else if (event.key === "j") moveRow(1);
  else if (event.key === "k") moveRow(-1);
  else if (event.key === "Enter") document.querySelector("main tr.on a")?.click();
  else if (event.key === "?") openDialog(byId("keys"));
  else if (event.key === "n") document.querySelector("[data-new]")?.click();
});

// -- htmx: live parts are not refreshed while they are in use, or while the page is hidden

document.addEventListener("htmx:beforeRequest", (event) => {
  const element = event.detail.elt;
  if (element.dataset.cancelled) event.preventDefault();
  if (!element.matches("[data-live]")) return;
  const busy = document.hidden || document.querySelector("dialog[open]") || element.contains(document.activeElement)
    || window.getSelection()?.toString();
  if (busy) event.preventDefault();
});

// They request the current address: a search, or another page of a list, may have changed it.
document.addEventListener("htmx:configRequest", (event) => {
  if (event.detail.elt.matches("[data-live]")) event.detail.path = location.pathname + location.search;
});

// The answer of a cancelled request is not inserted: "Search on" requests it again. Nor is a live part's answer for an
// earlier address: the whole list would replace the results of a search.
document.addEventListener("htmx:beforeSwap", (event) => {
  const { elt, path } = event.detail.requestConfig;
  const overtaken = elt.matches("[data-live]") && path !== location.pathname + location.search;
  if (elt.dataset.cancelled || overtaken) event.detail.shouldSwap = false;
});

document.addEventListener("htmx:afterSwap", (event) => {
  // A refreshed list keeps its chosen row.
  if (chosen && !document.querySelector("main tr.on")) {
    rows().find((row) => row.querySelector("a").href === chosen)?.classList.add("on");
  }
  const dialog = event.detail.target.closest?.("dialog.drawer");
  if (dialog && !dialog.open) openDialog(dialog);
  else dialog?.querySelector("button")?.focus();
});

// -- live records: an EventSource that can be paused, and a table that stays short

const MOST_ROWS = 200;

class Tail {
  constructor(element) {
    this.element = element;
    this.body = byId(element.dataset.into);
    this.button = element.querySelector("[data-pause]");
    this.state = element.querySelector("[data-state]");
    this.seen = 0;
    this.at = "";
    this.button.addEventListener("click", () => (this.source ? this.stop("Paused") : this.start()));
    addEventListener("pagehide", () => this.source?.close());
    this.start();
  }

  start() {
    const address = new URL(this.element.dataset.tail, location.href);
    if (this.at) address.searchParams.set("at", this.at);
    this.source = new EventSource(address);
    this.button.textContent = "Pause";
    this.tell("Waiting for records");
    this.source.addEventListener("records", (event) => this.add(event));
    this.source.addEventListener("skipped", (event) => this.tell(`${event.data} records came too fast and were skipped`));
    this.source.addEventListener("trouble", (event) => this.stop(event.data));
    this.source.addEventListener("open", () => this.tell(this.seen ? this.count() : "Waiting for records"));
    this.source.addEventListener("error", () => this.tell("The connection is lost; trying again"));
  }

  stop(why) {
    this.source?.close();
    this.source = null;
    this.button.textContent = "Go on";
    this.tell(why);
  }

  add(event) {
    this.at = event.lastEventId;
    const before = this.body.rows.length;
    this.body.insertAdjacentHTML("afterbegin", event.data); // escaped by the server
    this.seen += this.body.rows.length - before;
    while (this.body.rows.length > MOST_ROWS) this.body.rows[this.body.rows.length - 1].remove();
    htmx.process(this.body);
    this.tell(this.count());
  }

  count() {
    return this.seen === 1 ? "1 record" : `${this.seen.toLocaleString("en")} records`;
  }

  tell(text) {
    this.state.textContent = text;
  }
}

function follow() {
  const on = byId("tail-on");
  byId("tail-off").hidden = true;
  on.hidden = false;
  on.dataset.tail = on.dataset.tailAt;
  byId("more")?.replaceChildren();
  new Tail(on);
}

// -- a search that continues by itself until it is cancelled

function cancelSearch(button) {
  const link = byId(button.dataset.cancel);
  if (link) {
    link.dataset.cancelled = "1";
    link.textContent = "Search on";
  }
  for (const each of all(".badge", button.parentElement)) each.remove();
  button.remove();
}

function begin() {
  for (const each of all("[data-confirm]")) checkConfirm(each);
  for (const each of document.forms) showWhen(each);
}

begin();
addEventListener("pageshow", begin); // a browser that goes back has fields as they were left
