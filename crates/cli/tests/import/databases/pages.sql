PRAGMA page_size = 4096;
CREATE TABLE words(id INTEGER PRIMARY KEY, word TEXT NOT NULL, n INTEGER);
CREATE INDEX by_word ON words(word);
CREATE TABLE pairs(a TEXT, b REAL, PRIMARY KEY(a, b)) WITHOUT ROWID;
WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 4000)
INSERT INTO words SELECT i, 'word ' || (i * 79 % 101) || ' of the list, which is long, and as repetitive as a long list of words can be', i % 10 FROM i;
WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 500)
INSERT INTO pairs SELECT 'pair ' || (i % 50), i / 4.0 FROM i;
DELETE FROM words WHERE id % 7 = 0;
-- through the extension
UPDATE words SET n = n + 1 WHERE id % 50 = 0;
