use super::*;
use hearth_turn::PastCall;
use proptest::prelude::*;

fn exchange(n: usize, bytes: usize) -> Vec<ChatMessage> {
    let call = PastCall { id: "1".into(), name: "clock.now".into(), arguments: Default::default() };
    vec![
        ChatMessage::User { text: format!("{n} {}", "x".repeat(bytes)) },
        ChatMessage::Assistant { text: String::new(), calls: vec![call] },
        ChatMessage::Tool {
            call_id: "1".into(),
            name: "clock.now".into(),
            text: "12:00".into(),
            is_error: false,
        },
        ChatMessage::Assistant { text: "noon".into(), calls: vec![] },
    ]
}

fn request(sizes: &[usize]) -> ModelRequest {
    let messages = sizes.iter().enumerate().flat_map(|(n, bytes)| exchange(n, *bytes)).collect();
    ModelRequest { system: "s".repeat(300), tools: vec![], messages, max_tokens: 100 }
}

#[test]
fn what_fits_is_left_alone() {
    let request = request(&[10, 10]);
    let fitted = fit(request.clone(), 1000);
    assert_eq!((fitted.request, fitted.dropped, fitted.fits), (request.clone(), 0, true));
    assert_eq!(fitted.estimated_tokens, estimate_tokens(&request));
}

#[test]
fn one_large_exchange_is_kept_and_reported() {
    let fitted = fit(request(&[10, 10, 9000]), 1000);
    assert_eq!((fitted.dropped, fitted.fits, fitted.request.messages.len()), (2, false, 4));
    assert!(!fit(ModelRequest { messages: vec![], ..request(&[]) }, 0).fits);
}

#[test]
fn the_beginning_stays_the_same_for_several_turns() {
    let mut cuts = Vec::new();
    for turns in 1..60 {
        cuts.push(fit(request(&vec![150; turns]), 2000).dropped);
    }
    assert!(cuts.windows(2).all(|w| w[0] <= w[1]));
    let changes = cuts.windows(2).filter(|w| w[0] != w[1]).count();
    assert!(changes <= cuts.len() / 4, "{changes} changes: {cuts:?}");
}

proptest! {
    #[test]
    fn trimming_keeps_whole_exchanges_and_fits(sizes in prop::collection::vec(0usize..3000, 1..20), context in 200u32..6000) {
        let original = request(&sizes);
        let fitted = fit(original.clone(), context);
        let kept = &fitted.request.messages;
        prop_assert_eq!(kept.as_slice(), &original.messages[4 * fitted.dropped..]);
        let begins = matches!(kept[0], ChatMessage::User { .. });
        prop_assert!(kept.len() >= 4 && begins);
        prop_assert_eq!(fitted.estimated_tokens, estimate_tokens(&fitted.request));
        let room = u64::from(context) - 100.min(u64::from(context) / 2);
        prop_assert_eq!(fitted.fits, fitted.estimated_tokens <= room);
        prop_assert!(fitted.fits || kept.len() == 4);
    }
}
