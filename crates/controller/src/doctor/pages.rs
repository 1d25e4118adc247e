//! Lists in pages: a cluster with 50,000 claims must not be one answer.

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::{CallError, within};

const PAGE: u32 = 500;

/// Calls `each` on every object.
pub(super) async fn each<K>(api: &Api<K>, mut each: impl FnMut(K)) -> Result<(), CallError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut next = None;
    loop {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = next;
        let page = within(api.list(&params)).await?;
        page.items.into_iter().for_each(&mut each);
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            return Ok(());
        }
    }
}
