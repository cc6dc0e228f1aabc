(function () {
  "use strict";

  // Numbers by value, with those that are not known last in either order; text as a reader would.
  const collator = new Intl.Collator("en", { numeric: true });

  function keyOf(cell) {
    const key = cell.dataset.key;
    return key === undefined ? cell.textContent : key === "" ? null : Number(key);
  }

  function sort(body, column, sign) {
    const rows = Array.from(body.rows, (row) => [keyOf(row.cells[column]), row]);
    rows.sort(([x], [y]) => {
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "number" ? (x > y) - (x < y) : collator.compare(x, y));
    });
    body.append(...rows.map(([, row]) => row));
  }

  function makeSortable(table) {
    const headers = Array.from(table.tHead.rows[0].cells);
    headers.forEach((header, column) => {
      if (header.classList.contains("spark")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      header.ariaSort = "none";
      const isNumeric = ["number", "share", "bar"].some((kind) => header.classList.contains(kind));
      button.addEventListener("click", () => {
        const ascending = header.ariaSort === "none" ? !isNumeric : header.ariaSort === "descending";
        headers.forEach((each) => (each.ariaSort = each.ariaSort && "none"));
        header.ariaSort = ascending ? "ascending" : "descending";
        sort(table.tBodies[0], column, ascending ? 1 : -1);
      });
    });
  }

  function makeFilter(box, table) {
    const rows = Array.from(table.tBodies[0].rows);
    if (rows.length < 6) return;
    const controls = document.createElement("div");
    controls.className = "controls";
    controls.innerHTML = '<label><input type="search" placeholder="Filter"></label><output></output>';
    const [input, output] = controls.querySelectorAll("input, output");
    input.setAttribute("aria-label", "Filter " + box.dataset.unit + " by text");
    box.prepend(controls);
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row) => {
        row.text = row.text || row.textContent.toLowerCase();
        row.hidden = !words.every((word) => row.text.includes(word));
      });
      const counts = [rows.filter((row) => !row.hidden).length, rows.length].map((count) => count.toLocaleString("en"));
      output.textContent = (words.length ? counts.join(" of ") : counts[1]) + " " + box.dataset.unit;
    };
    input.addEventListener("input", show);
    show();
  }

  // A box with more to its right or below fades out there: not every browser shows a scroll bar.
  function makeScrollable(box) {
    const show = () => {
      box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
      box.classList.toggle("below", box.scrollTop + box.clientHeight < box.scrollHeight - 1);
    };
    box.addEventListener("scroll", show, { passive: true });
    new ResizeObserver(show).observe(box);
  }

  function makeDetails(figure) {
    const details = figure.querySelector(".details");
    figure.addEventListener("click", (event) => {
      const box = event.target.closest(".box");
      if (!box) return;
      figure.querySelectorAll(".chosen").forEach((each) => each.classList.remove("chosen"));
      box.classList.add("chosen");
      details.classList.add("chosen-details");
      const text = box.querySelector("title").textContent.replaceAll("\n", "\n\n");
      const parts = text.split("_"); // a name may break behind each
      details.replaceChildren(...parts.flatMap((part, i) => (i ? ["_", document.createElement("wbr"), part] : [part])));
    });
  }

  document.querySelectorAll(".mxmp .table, .mxmp .network").forEach((box) => {
    if ("ready" in box.dataset) return; // by the script of a cell before
    box.dataset.ready = "";
    const table = box.querySelector("table");
    if (table) makeSortable(table);
    if (table) makeFilter(box, table);
    if (!table) makeDetails(box);
    box.querySelectorAll(".scroll").forEach(makeScrollable);
  });
})();
