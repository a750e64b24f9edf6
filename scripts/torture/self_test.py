"""Tests the judge first: it must notice a ledger that is damaged in any of these ways."""

import os

import crew
import ledger
import sql

SEED = "self-test"
TRANSACTIONS = 25
# Kinds of damage, and the statements that cause them in a sound ledger. They use only SQL: the
# database itself stays valid.
SABOTAGE = {
    "half a transfer": ["update account set balance = balance - 1 where id = 3"],
    "a whole transfer that nobody made": [
        "update account set balance = balance - 1 where id = 3", "update account set balance = balance + 1 where id = 4",
    ],
    "an older text of an account": ["update account set body = substr(body, 2) where id = 5"],
    "a transaction gone from the middle of the log": ["delete from log where seq = 10"],
    "the last transaction gone from the log alone": [f"delete from log where seq = {TRANSACTIONS}"],
    "another text in the log": ["update log set text = text || ' ' where seq = 7"],
    "a transaction by another writer": ["update log set writer = 2 where seq = 7"],
    "a writer that is ahead of the log": ["update writer set number = number + 1"],
    "a count that is too high": ["update head set count = count + 1"],
    "two transactions swapped": [
        "update log set seq = -1 where seq = 8", "update log set seq = 8 where seq = 9", "update log set seq = 9 where seq = -1",
    ],
}


def judge(db, least):
    db.execute("begin")
    try:
        reached = ledger.judge(db, ledger.Bodies(SEED))
        ledger.compare(reached, least, least, "self-test")
        ledger.Exact(SEED).judge(db, reached)
    finally:
        db.execute("rollback")


def run(context):
    with context.directory("self-test") as work:
        pool = os.path.join(work, "pool.hpk")
        db = sql.connect(pool, "synchronous=off")
        ledger.create(db, SEED)
        bodies = ledger.Bodies(SEED)
        for number in range(1, TRANSACTIONS + 1):
            db.execute("begin immediate")
            ledger.apply(db, ledger.Plan(SEED, 1, number), bodies, 1, number)
            db.execute("commit")
        judge(db, {1: TRANSACTIONS})
        must_be_found(db, {1: TRANSACTIONS + 1}, "an acknowledged transaction is lost", [])
        must_be_found(db, {1: TRANSACTIONS - 1}, "a transaction that nobody began", [])
        for what, statements in SABOTAGE.items():
            must_be_found(db, {1: TRANSACTIONS}, what, statements)
        judge(db, {1: TRANSACTIONS})
        db.close()
    context.counts["kinds of damage that the judge found"] = len(SABOTAGE) + 2


def must_be_found(db, least, what, statements):
    db.execute("savepoint sabotage")
    for statement in statements:
        db.execute(statement)
    try:
        reached = ledger.judge(db, ledger.Bodies(SEED))
        ledger.compare(reached, least, least, what)
        ledger.Exact(SEED).judge(db, reached)
    except ledger.Wrong:
        return
    finally:
        db.execute("rollback to sabotage")
        db.execute("release sabotage")
    raise crew.Failed(f"the judge does not notice this: {what}")
