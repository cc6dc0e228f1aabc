(function () {
  "use strict";

  // Numbers by value, with those that are not known last in either order; text as a reader would.
  const collator = new Intl.Collator("en", { numeric: true });

  function keysOf(rows, column) {
    const numbers = rows.some((row) => row.cells[column].hasAttribute("data-key"));
    return rows.map((row) => {
      const cell = row.cells[column];
      if (!numbers) return cell.textContent;
      const key = cell.getAttribute("data-key");
      return key === "" || key === null ? null : key === "inf" ? Infinity : key === "-inf" ? -Infinity : Number(key);
    });
  }

  function sort(table, column, ascending) {
    const rows = Array.from(table.tBodies[0].rows);
    const keys = keysOf(rows, column);
    const sign = ascending ? 1 : -1;
    const order = rows.map((_, i) => i).sort((a, b) => {
      const x = keys[a], y = keys[b];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      const by = typeof x === "number" ? (x < y ? -1 : x > y ? 1 : 0) : collator.compare(x, y);
      return sign * by || a - b;
    });
    table.tBodies[0].append(...order.map((i) => rows[i]));
  }

  function makeSortable(table) {
    const headers = Array.from(table.tHead.rows[0].cells);
    headers.forEach((header, column) => {
      if (header.classList.contains("spark")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      header.setAttribute("aria-sort", "none");
      const downFirst = ["number", "share", "bar"].some((kind) => header.classList.contains(kind));
      button.addEventListener("click", () => {
        const now = header.getAttribute("aria-sort");
        const ascending = now === "none" ? !downFirst : now === "descending";
        headers.forEach((each) => each.hasAttribute("aria-sort") && each.setAttribute("aria-sort", "none"));
        header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, ascending);
      });
    });
  }

  function makeFilter(box, table) {
    const rows = Array.from(table.tBodies[0].rows);
    if (rows.length < 6) return;
    const controls = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    controls.className = "controls";
    input.type = "search";
    input.placeholder = "Filter";
    input.setAttribute("aria-label", "Filter " + box.dataset.unit + " by text");
    label.append(input);
    controls.append(label, count);
    box.prepend(controls);
    let texts = null;
    const show = () => {
      texts = texts || rows.map((row) => row.textContent.toLowerCase());
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += !row.hidden;
      });
      const all = rows.length.toLocaleString("en");
      count.textContent = words.length ? shown.toLocaleString("en") + " of " + all + " " + box.dataset.unit : all + " " + box.dataset.unit;
    };
    input.addEventListener("input", show);
    count.textContent = rows.length.toLocaleString("en") + " " + box.dataset.unit;
  }

  // A box with more to its right fades out there: not every browser shows a scroll bar.
  function makeScrollable(box) {
    const show = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", show, { passive: true });
    new ResizeObserver(show).observe(box);
  }

  function makeDetails(figure) {
    const details = figure.querySelector(".details");
    figure.querySelectorAll(".box").forEach((box) => {
      box.addEventListener("click", () => {
        figure.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
        box.classList.add("chosen");
        figure.classList.add("chosen-details");
        details.replaceChildren(...box.querySelector("title").textContent.split("\n").map((line) => {
          const span = document.createElement("span");
          span.textContent = line;
          return span;
        }));
      });
    });
  }

  document.querySelectorAll(".mxmp .table:not([data-ready])").forEach((box) => {
    box.dataset.ready = "";
    const table = box.querySelector("table");
    makeSortable(table);
    makeFilter(box, table);
    makeScrollable(box.querySelector(".scroll"));
  });
  document.querySelectorAll(".mxmp .network:not([data-ready])").forEach((figure) => {
    figure.dataset.ready = "";
    makeDetails(figure);
    figure.querySelectorAll(".scroll").forEach(makeScrollable);
  });
})();
