//! Compares the table in `docs/sql.md` with what the library has.

use std::collections::BTreeSet;

use hardpack::{ffi, functions, pragma, uri};
use hardpack_engine::pool::Property;

const PAGE: &str = include_str!("../../../../docs/sql.md");

/// Returns the cells of the table, without its head.
fn rows() -> Vec<[String; 3]> {
    let lines = PAGE.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        <[String; 3]>::try_from(cells.collect::<Vec<_>>()).unwrap_or_else(|_| panic!("{line}"))
    };
    lines.map(cells).collect()
}

/// Returns the code in a cell: `a`, `b`.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn functions_are_those_of_the_page() {
    let rows = rows();
    for function in &functions::ALL {
        let usage = function.usage();
        let row = rows.iter().find(|[name, ..]| *name == format!("`{usage}`"));
        let [_, _, place] = row.unwrap_or_else(|| panic!("{usage} is not in docs/sql.md"));
        let expected = match function.flags {
            ffi::SQLITE_DIRECTONLY => "direct calls",
            ffi::SQLITE_INNOCUOUS => "anywhere",
            _ => "queries, views, triggers",
        };
        assert_eq!(place, expected, "{usage}");
    }
    // What the connection itself says: each function and table, with the numbers of arguments.
    crate::common::setup();
    let db = rusqlite::Connection::open_in_memory().unwrap();
    let all = |sql: &str| -> BTreeSet<String> {
        let mut statement = db.prepare(sql).unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    };
    let like = "where name like 'hardpack%'";
    let mut listed = BTreeSet::new();
    for [name, ..] in &rows {
        let Some((name, arguments)) = name.trim_matches('`').split_once('(') else { continue };
        if name == "hardpack_stats" {
            continue;
        }
        let most = arguments.trim_end_matches(')').split(',').filter(|a| !a.is_empty()).count();
        let optional = arguments.matches('[').count();
        listed.extend((most - optional..=most).map(|count| format!("{name} {count}")));
    }
    let functions = format!("select name || ' ' || narg from pragma_function_list {like}");
    assert_eq!(all(&functions), listed);
    let tables = all(&format!("select name from pragma_module_list {like}"));
    assert_eq!(tables, ["hardpack_stats".to_owned()].into());
    let row = rows.iter().find(|[name, ..]| name == "`hardpack_stats([schema])`").unwrap();
    let columns = "select group_concat('`' || name || '`', ', ') from pragma_table_info";
    let columns: String = crate::common::value(&db, &format!("{columns}('hardpack_stats')"));
    assert_eq!(columns.replace(", `unit`", " and `unit`"), "`name`, `value` and `unit`");
    assert!(row[1].contains("the columns `name`, `value` and `unit`"));
}

#[test]
fn pragmas_and_parameters_are_those_of_the_page() {
    let rows = rows();
    let of = |place: &dyn Fn(&[String; 3]) -> bool| -> BTreeSet<String> {
        let found = rows.iter().filter(|row| place(row));
        found.flat_map(|[name, ..]| code(name)).map(str::to_owned).collect()
    };
    let mut pragmas: BTreeSet<String> =
        pragma::FACTS.iter().map(|name| format!("PRAGMA hardpack_{name}")).collect();
    pragmas.insert("PRAGMA hardpack_PROPERTY".into());
    pragmas.insert("PRAGMA hardpack_PROPERTY = value".into());
    assert_eq!(of(&|[name, ..]| name.starts_with("`PRAGMA")), pragmas);

    let parameters = of(&|[_, _, place]| place == "URI");
    let parameters: BTreeSet<&str> =
        parameters.iter().map(|text| text.split('=').next().unwrap()).collect();
    let mut expected: BTreeSet<&str> = uri::ALL.iter().map(|name| name.to_str().unwrap()).collect();
    expected.insert("hardpack_PROPERTY");
    assert_eq!(parameters, expected);

    let start = PAGE.find("PROPERTY is one of").expect("the page lists the properties");
    let names = code(PAGE[start..].split("\n\n").next().unwrap());
    let expected = Property::ALL.map(|property| property.name().replace('-', "_"));
    assert_eq!(names, expected);
    let others = rows.iter().filter(|[name, _, place]| {
        !name.starts_with("`hardpack_") && !name.starts_with("`PRAGMA") && place != "URI"
    });
    assert_eq!(others.count(), 0, "a row of an unknown kind");
}
