// Sphinx lists pages that have every word of a query. Two things are added for a reader who asks a question or pastes a
// message: a long query keeps only the words of the page that has most of them, since a message holds names of the reader's
// own network; and sections whose titles have the words come first.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const MOST_SECTIONS = 4;
  const ENOUGH = 0.7; // share of the words of a query, or of a title, that are in the other

  const words = (text) => {
    const stemmer = new Stemmer();
    const terms = splitQuery(text.toLowerCase()).filter((word) => !stopwords.includes(word));
    return new Set(terms.map((word) => stemmer.stemWord(word)));
  };
  const pages = (term) =>
    [Search._index.terms, Search._index.titleterms].flatMap((index) =>
      Object.hasOwn(index, term) ? [].concat(index[term]) : []
    );

  const parse = Search._parseQuery;
  Search._parseQuery = (query) => {
    const parsed = parse(query);
    if (parsed[1].size < 4) return parsed;
    const weights = {};
    for (const term of parsed[1]) {
      const found = new Set(pages(term));
      for (const page of found) weights[page] = (weights[page] || 0) + 1 / found.size;
    }
    const best = Number(Object.keys(weights).sort((a, b) => weights[b] - weights[a])[0]);
    parsed[1] = new Set([...parsed[1]].filter((term) => pages(term).includes(best)));
    return parsed;
  };

  const perform = Search._performSearch;
  Search._performSearch = (query, ...rest) => {
    const asked = words(query);
    const sections = [];
    for (const [title, places] of Object.entries(Search._index.alltitles)) {
      const own = words(title);
      const common = [...own].filter((word) => asked.has(word)).length;
      const shares = [common / asked.size, common / own.size];
      if (common < 2 || Math.max(...shares) < ENOUGH) continue;
      for (const [file, id] of places) {
        const page = Search._index.titles[file];
        const text = page === title ? title : `${page} > ${title}`;
        const place = [Search._index.docnames[file], text, id === null ? "" : `#${id}`, null];
        sections.push([...place, shares[0] + shares[1], Search._index.filenames[file]]);
      }
    }
    const best = sections.sort((a, b) => a[4] - b[4]).slice(-MOST_SECTIONS); // the last one is shown first
    const shown = new Set(best.map((each) => each[0] + each[2]));
    return [...perform(query, ...rest).filter((each) => !shown.has(each[0] + each[2])), ...best];
  };
});
