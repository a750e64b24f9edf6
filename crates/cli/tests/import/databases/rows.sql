CREATE TABLE authors(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE pages(
    id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL UNIQUE, author INTEGER REFERENCES authors(id),
    body TEXT, raw BLOB, score REAL DEFAULT 0.5
);
CREATE INDEX pages_by_author ON pages(author, title);
CREATE TABLE keyed(a TEXT, b TEXT, content TEXT, PRIMARY KEY(a, b));
CREATE TABLE "flat table"(k TEXT PRIMARY KEY, filling TEXT) WITHOUT ROWID;
CREATE TABLE log(what TEXT);
CREATE VIEW titles AS SELECT title FROM pages;
CREATE TRIGGER pages_log AFTER UPDATE ON pages BEGIN INSERT INTO log VALUES (new.title); END;
INSERT INTO authors(name) VALUES ('Ada'), ('Grace');
WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 400)
INSERT INTO pages(title, author, body, raw, score) SELECT
    'title ' || i, i % 2 + 1,
    CASE i % 50 WHEN 7 THEN NULL WHEN 8 THEN '' ELSE
        replace(hex(zeroblob(6)), '00', 'The page ' || i || ' tells of ' || (i * 7919 % 61) || '. ') || 'Größe €' || char(10)
    END,
    CASE WHEN i % 3 = 0 THEN unhex(replace(hex(zeroblob(40)), '00', printf('%04x05060300', i * 31 % 65536))) END,
    i / 8.0
FROM i;
DELETE FROM pages WHERE id % 11 = 0;
INSERT INTO pages(id, title) VALUES (100000, 'last');
DELETE FROM pages WHERE id = 100000;
WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < 150)
INSERT INTO keyed SELECT 'a' || (i % 7), 'b' || i, replace(hex(zeroblob(8)), '00', 'a body of text for the key ' || i || ' ') FROM i;
INSERT INTO "flat table" SELECT b, content FROM keyed WHERE a < 'a3';
-- through the extension
INSERT INTO pages(title, author, body, score) VALUES ('written later', 1, 'not compressed yet', 1);
CREATE VIEW bodies AS SELECT id, length(body) AS n FROM pages;
