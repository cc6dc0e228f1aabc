// A pasted message holds names of the reader's own network, and Sphinx wants every word on the page. So a long query keeps
// only the words of the page that has most of them.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parse(query);
    if (parsed[1].size < 4) return parsed;
    const pages = (term) =>
      [Search._index.terms, Search._index.titleterms].flatMap((index) =>
        Object.hasOwn(index, term) ? [].concat(index[term]) : []
      );
    const counts = {};
    for (const term of parsed[1]) for (const page of new Set(pages(term))) counts[page] = (counts[page] || 0) + 1;
    const best = Number(Object.keys(counts).sort((a, b) => counts[b] - counts[a])[0]);
    parsed[1] = new Set([...parsed[1]].filter((term) => pages(term).includes(best)));
    return parsed;
  };
});
