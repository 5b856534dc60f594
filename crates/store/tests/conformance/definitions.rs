//! Definitions: versions are counted, equal content makes none, and a deleted definition keeps its versions.

use bytes::Bytes;
use futures_util::future::join_all;
use muster_domain::{Tenant, WorkflowName};
use muster_store::{DeletedDefinition, PutDefinition, SeenVersion};

use crate::bench::{Bench, tenant};

fn name(text: &str) -> WorkflowName {
    WorkflowName::parse(text).unwrap()
}

async fn put(bench: &Bench, tenant: &Tenant, of: &str, text: &str, seen: SeenVersion) -> PutDefinition {
    let mut hash = [0; 32];
    hash[..text.len()].copy_from_slice(text.as_bytes());
    let text = Bytes::copy_from_slice(text.as_bytes());
    bench.store.put_definition(tenant, &name(of), seen, &text, &hash).await.unwrap()
}

fn stored(version: u32, new: bool) -> PutDefinition {
    PutDefinition::Stored { version, new }
}

pub(crate) async fn content_equal_to_the_latest_makes_no_new_version(bench: &Bench) {
    let (tenant, any) = (tenant(), SeenVersion::Any);
    assert_eq!(bench.store.read_definition(&tenant, &name("w"), None).await, Ok(None));
    assert_eq!(bench.store.definition_versions(&tenant, &name("w")).await, Ok(vec![]));
    for (text, answer) in
        [("a", stored(1, true)), ("a", stored(1, false)), ("b", stored(2, true)), ("a", stored(3, true))]
    {
        assert_eq!(put(bench, &tenant, "w", text, any).await, answer, "{text}");
    }
    let latest = bench.store.read_definition(&tenant, &name("w"), None).await.unwrap().unwrap();
    assert_eq!((latest.version, latest.text.as_ref()), (3, &b"a"[..]));
    let second = bench.store.read_definition(&tenant, &name("w"), Some(2)).await.unwrap().unwrap();
    assert_eq!((second.version, second.text.as_ref()), (2, &b"b"[..]));
    assert!(second.stored_at <= latest.stored_at && second.stored_at.0 > 0);
    assert_eq!(bench.store.read_definition(&tenant, &name("w"), Some(4)).await, Ok(None));
    let versions = bench.store.definition_versions(&tenant, &name("w")).await.unwrap();
    assert_eq!(versions.iter().map(|version| version.version).collect::<Vec<_>>(), [3, 2, 1]);
}

pub(crate) async fn of_many_writers_of_a_definition_who_saw_the_same_one_wins(bench: &Bench) {
    let tenant = tenant();
    assert_eq!(put(bench, &tenant, "w", "0", SeenVersion::Exactly(1)).await, PutDefinition::Mismatch(None));
    let writers = (0..32).map(|n| {
        let tenant = &tenant;
        async move { put(bench, tenant, "w", &format!("text {n}"), SeenVersion::Exactly(0)).await }
    });
    let answers = join_all(writers).await;
    assert_eq!(answers.iter().filter(|answer| **answer == stored(1, true)).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == PutDefinition::Mismatch(Some(1))).count(), 31);
    assert_eq!(put(bench, &tenant, "w", "next", SeenVersion::Exactly(1)).await, stored(2, true));
}

pub(crate) async fn a_deleted_definition_is_hidden_and_its_numbers_are_not_used_again(bench: &Bench) {
    let (tenant, any) = (tenant(), SeenVersion::Any);
    for text in ["a", "b"] {
        put(bench, &tenant, "w", text, any).await;
    }
    let delete = async |seen| bench.store.delete_definition(&tenant, &name("w"), seen).await.unwrap();
    assert_eq!(delete(SeenVersion::Exactly(1)).await, DeletedDefinition::Mismatch(2));
    assert_eq!(delete(SeenVersion::Exactly(2)).await, DeletedDefinition::Hidden(2));
    assert_eq!(delete(any).await, DeletedDefinition::Missing);
    assert_eq!(bench.store.read_definition(&tenant, &name("w"), None).await, Ok(None));
    assert_eq!(bench.store.list_definitions(&tenant, None, 10).await, Ok((vec![], None)));
    // Runs that have begun with a version still find it.
    let pinned = bench.store.read_definition(&tenant, &name("w"), Some(2)).await.unwrap().unwrap();
    assert_eq!(pinned.text.as_ref(), b"b");
    assert_eq!(put(bench, &tenant, "w", "b", SeenVersion::Exactly(0)).await, stored(3, true), "a version of its own");
    assert_eq!(bench.store.list_definitions(&tenant, None, 10).await, Ok((vec![(name("w"), 3)], None)));
    assert_eq!(bench.store.delete_definition(&tenant, &name("never"), any).await, Ok(DeletedDefinition::Missing));
}

pub(crate) async fn definitions_are_listed_by_name(bench: &Bench) {
    let tenant = tenant();
    for of in ["b", "a.x", "c-1", "a"] {
        put(bench, &tenant, of, "text", SeenVersion::Any).await;
    }
    put(bench, &crate::bench::tenant(), "other", "text", SeenVersion::Any).await;
    let (mut found, mut after) = (Vec::new(), None::<WorkflowName>);
    loop {
        let (page, next) = bench.store.list_definitions(&tenant, after.as_ref(), 2).await.unwrap();
        assert!(page.len() <= 2 && page.iter().all(|(_, version)| *version == 1));
        found.extend(page.into_iter().map(|(name, _)| name.to_string()));
        let Some(next) = next else { break };
        after = Some(next);
    }
    assert_eq!(found, ["a", "a.x", "b", "c-1"]);
}
