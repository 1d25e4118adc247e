//! This machine's clock beside the API server's. Leases do not go by it; what is kept for a time does.

use http::{Request, header};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::Client;
use kube::client::Body;

use super::{Report, Status, within};

/// Beyond this, times in events and logs mislead people.
const NOTICEABLE: i64 = 30;

pub(super) async fn look(report: &mut Report, client: &Client) {
    let Ok(request) = Request::get("/version").body(Body::empty()) else { return };
    let answer = match within(client.send(request)).await {
        Ok(answer) => answer,
        Err(error) => return report.add("clock", Status::Note, error.text("get", "the version")),
    };
    let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
    judge(report, date.and_then(parse), Timestamp::now());
}

fn parse(date: &str) -> Option<Timestamp> {
    rfc2822::parse(date).ok().map(|date| date.timestamp())
}

fn judge(report: &mut Report, theirs: Option<Timestamp>, ours: Timestamp) {
    let Some(theirs) = theirs else {
        report.add("clock", Status::Note, "not compared: the API server's answer bears no date");
        return;
    };
    let ahead = ours.as_second().saturating_sub(theirs.as_second());
    let (amount, side) = (ahead.abs(), if ahead < 0 { "behind" } else { "ahead of" });
    if amount < NOTICEABLE {
        report.ok("clock", "this machine's is the API server's, to within half a minute");
        return;
    }
    report.add("clock", Status::Warn, format!("this machine's is {amount} s {side} the API server's"));
    report.remedy("let both take their time from NTP; until then nothing that is kept for a time is removed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_of_an_answer_is_read() {
        let date = parse("Sat, 10 Jan 2026 00:00:07 GMT").unwrap();
        assert_eq!(date.to_string(), "2026-01-10T00:00:07Z");
    }

    #[test]
    fn a_clock_that_is_off_is_told_with_its_side() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (theirs, ours, status, expected) in [
            (None, "2026-01-10T00:00:00Z", Status::Note, "no date"),
            (Some("2026-01-10T00:00:10Z"), "2026-01-10T00:00:00Z", Status::Ok, "half a minute"),
            (Some("2026-01-10T00:01:00Z"), "2026-01-10T00:00:00Z", Status::Warn, "60 s behind"),
            (Some("2026-01-10T00:00:00Z"), "2026-01-10T00:00:45Z", Status::Warn, "45 s ahead of"),
        ] {
            let mut report = Report::default();
            judge(&mut report, theirs.map(at), at(ours));
            let [finding] = &report.findings[..] else { panic!("{report:#?}") };
            assert_eq!(
                (finding.status, finding.remedy.is_some()),
                (status, status == Status::Warn),
                "{finding:?}"
            );
            assert!(finding.detail.contains(expected), "{finding:?}");
        }
    }
}
