"use strict";
(function () {
  const root = document.documentElement;

  // Light or dark: as the system says, until the reader chooses.
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* not kept */ } };
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => {
    button.textContent = isDark() ? "☀ Light" : "☾ Dark";
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  };
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  button.hidden = false;
  label();
  system.addEventListener("change", label);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    keep(root.dataset.theme);
    label();
  });

  // Tables sort by a click on a column's head; what is missing stays last.
  const compare = (numeric) => (a, b) => numeric ? a - b : a.localeCompare(b, undefined, { numeric: true });
  function sort(table, head, column, numeric) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    const value = (row) => {
      const cell = row.cells[column];
      const text = cell.dataset.value !== undefined ? cell.dataset.value : cell.textContent.trim();
      return text === "" || (numeric && Number.isNaN(Number(text))) ? null : numeric ? Number(text) : text;
    };
    const order = compare(numeric);
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : up ? order(a, b) : order(b, a));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  }
  document.querySelectorAll("table.sortable").forEach((table) => {
    table.querySelectorAll("thead th[scope=col]:not(.picture)").forEach((head) => {
      const column = head.dataset.column !== undefined ? Number(head.dataset.column) : head.cellIndex;
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.className = "sort";
      sorter.append(...head.childNodes);
      head.append(sorter);
      sorter.addEventListener("click", () => sort(table, head, column, head.dataset.sort === "number"));
    });
  });

  // A link to a run opens it.
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) {
      target.open = true;
      target.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", open);
  open();

  // Paper cannot be unfolded: what is closed is printed open, and closed again.
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((one) => { one.open = false; });
    closed = [];
  });
})();
