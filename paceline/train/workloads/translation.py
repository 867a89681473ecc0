"""English ↔ French, Spanish, German, Italian, Portuguese: sentences from one grammar with fixed vocabularies.

Columns are en | fr | es | de | it | pt everywhere; German nouns give nominative/accusative where they differ.
"""

# ruff: noqa: E501 – one entry of a table per line reads best

import random

from paceline.train.chats import Chat, ask

LANGUAGES = ("English", "French", "Spanish", "German", "Italian", "Portuguese")


def _table(text: str) -> list[tuple[str, ...]]:
    return [tuple(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines()]


_PEOPLE = _table("""
the farmer|le fermier|el granjero|der Bauer|il contadino|o agricultor
the teacher|le professeur|el profesor|der Lehrer|l'insegnante|o professor
the boy|le garçon|el niño|der Junge|il ragazzo|o menino
the girl|la fille|la niña|das Mädchen|la ragazza|a menina
the woman|la femme|la mujer|die Frau|la donna|a mulher
the man|l'homme|el hombre|der Mann|l'uomo|o homem
the doctor|le médecin|el médico|der Arzt|il medico|o médico
my brother|mon frère|mi hermano|mein Bruder|mio fratello|o meu irmão
my sister|ma sœur|mi hermana|meine Schwester|mia sorella|a minha irmã
our neighbour|notre voisin|nuestro vecino|unser Nachbar|il nostro vicino|o nosso vizinho
the baker|le boulanger|el panadero|der Bäcker|il fornaio|o padeiro
the old man|le vieil homme|el anciano|der alte Mann|il vecchio|o velho
Maria|Maria|María|Maria|Maria|Maria
Paul|Paul|Pablo|Paul|Paolo|Paulo
""")
_THINGS = _table("""
the apple|la pomme|la manzana|den Apfel|la mela|a maçã
the bread|le pain|el pan|das Brot|il pane|o pão
the cheese|le fromage|el queso|den Käse|il formaggio|o queijo
the letter|la lettre|la carta|den Brief|la lettera|a carta
the book|le livre|el libro|das Buch|il libro|o livro
the newspaper|le journal|el periódico|die Zeitung|il giornale|o jornal
the key|la clé|la llave|den Schlüssel|la chiave|a chave
the door|la porte|la puerta|die Tür|la porta|a porta
the window|la fenêtre|la ventana|das Fenster|la finestra|a janela
the ticket|le billet|el billete|die Fahrkarte|il biglietto|o bilhete
the bicycle|le vélo|la bicicleta|das Fahrrad|la bicicletta|a bicicleta
the car|la voiture|el coche|das Auto|la macchina|o carro
the tomatoes|les tomates|los tomates|die Tomaten|i pomodori|os tomates
the flowers|les fleurs|las flores|die Blumen|i fiori|as flores
the soup|la soupe|la sopa|die Suppe|la zuppa|a sopa
the coffee|le café|el café|den Kaffee|il caffè|o café
the water|l'eau|el agua|das Wasser|l'acqua|a água
the salt|le sel|la sal|das Salz|il sale|o sal
the map|la carte|el mapa|die Karte|la mappa|o mapa
the money|l'argent|el dinero|das Geld|i soldi|o dinheiro
""")
# he | we | I, each in the six languages.
_VERBS = [
    (_table(he)[0], _table(we)[0], _table(i)[0])
    for he, we, i in (
        ("buys|achète|compra|kauft|compra|compra", "buy|achetons|compramos|kaufen|compriamo|compramos", "buy|achète|compro|kaufe|compro|compro"),
        ("brings|apporte|trae|bringt|porta|traz", "bring|apportons|traemos|bringen|portiamo|trazemos", "bring|apporte|traigo|bringe|porto|trago"),
        ("sees|voit|ve|sieht|vede|vê", "see|voyons|vemos|sehen|vediamo|vemos", "see|vois|veo|sehe|vedo|vejo"),
        ("finds|trouve|encuentra|findet|trova|encontra", "find|trouvons|encontramos|finden|troviamo|encontramos", "find|trouve|encuentro|finde|trovo|encontro"),
        ("needs|veut|necesita|braucht|vuole|precisa de ter", "want|voulons|queremos|wollen|vogliamo|queremos", "want|veux|quiero|will|voglio|quero"),
        ("sells|vend|vende|verkauft|vende|vende", "sell|vendons|vendemos|verkaufen|vendiamo|vendemos", "sell|vends|vendo|verkaufe|vendo|vendo"),
        ("takes|prend|toma|nimmt|prende|leva", "take|prenons|tomamos|nehmen|prendiamo|levamos", "take|prends|tomo|nehme|prendo|levo"),
        ("looks for|cherche|busca|sucht|cerca|procura", "look for|cherchons|buscamos|suchen|cerchiamo|procuramos", "look for|cherche|busco|suche|cerco|procuro"),
        ("keeps|garde|guarda|behält|tiene|guarda", "keep|gardons|guardamos|behalten|teniamo|guardamos", "keep|garde|guardo|behalte|tengo|guardo"),
        ("forgets|oublie|olvida|vergisst|dimentica|esquece", "forget|oublions|olvidamos|vergessen|dimentichiamo|esquecemos", "forget|oublie|olvido|vergesse|dimentico|esqueço"),
    )
    if not he.startswith("needs")
]  # fmt: skip
_WE = ("we", "nous", "nosotros", "wir", "noi", "nós")
_I = ("I", "je", "yo", "ich", "io", "eu")
_PLACES = _table("""
in the garden|dans le jardin|en el jardín|im Garten|in giardino|no jardim
in the kitchen|dans la cuisine|en la cocina|in der Küche|in cucina|na cozinha
at the market|au marché|en el mercado|auf dem Markt|al mercato|no mercado
at the station|à la gare|en la estación|am Bahnhof|alla stazione|na estação
in the city|en ville|en la ciudad|in der Stadt|in città|na cidade
at school|à l'école|en la escuela|in der Schule|a scuola|na escola
in the village|dans le village|en el pueblo|im Dorf|nel villaggio|na aldeia
on the square|sur la place|en la plaza|auf dem Platz|in piazza|na praça
""")
_TIMES = _table("""
today|aujourd'hui|hoy|heute|oggi|hoje
tomorrow|demain|mañana|morgen|domani|amanhã
in the morning|le matin|por la mañana|am Morgen|la mattina|de manhã
in the evening|le soir|por la tarde|am Abend|la sera|à noite
on Sunday|dimanche|el domingo|am Sonntag|domenica|no domingo
on Friday|vendredi|el viernes|am Freitag|venerdì|na sexta-feira
in summer|en été|en verano|im Sommer|in estate|no verão
every day|chaque jour|cada día|jeden Tag|ogni giorno|todos os dias
now|maintenant|ahora|jetzt|adesso|agora
""")
# Subject, its gender in fr, es, it, pt (m or f, one letter each).
_SUBJECTS = _table("""
the house|la maison|la casa|das Haus|la casa|a casa|ffff
the garden|le jardin|el jardín|der Garten|il giardino|o jardim|mmmm
the city|la ville|la ciudad|die Stadt|la città|a cidade|ffff
the train|le train|el tren|der Zug|il treno|o comboio|mmmm
the sea|la mer|el mar|das Meer|il mare|o mar|fmmm
the church|l'église|la iglesia|die Kirche|la chiesa|a igreja|ffff
the bridge|le pont|el puente|die Brücke|il ponte|a ponte|mmmf
the street|la rue|la calle|die Straße|la strada|a rua|ffff
the dog|le chien|el perro|der Hund|il cane|o cão|mmmm
the table|la table|la mesa|der Tisch|il tavolo|a mesa|ffmf
the square|la place|la plaza|der Platz|la piazza|a praça|ffff
the wind|le vent|el viento|der Wind|il vento|o vento|mmmm
""")
# English, German, then masculine/feminine pairs for fr, es, it, pt.
_ADJECTIVES = _table("""
small|klein|petit/petite|pequeño/pequeña|piccolo/piccola|pequeno/pequena
big|groß|grand/grande|grande/grande|grande/grande|grande/grande
beautiful|schön|beau/belle|hermoso/hermosa|bello/bella|bonito/bonita
old|alt|vieux/vieille|viejo/vieja|vecchio/vecchia|velho/velha
new|neu|nouveau/nouvelle|nuevo/nueva|nuovo/nuova|novo/nova
quiet|ruhig|calme/calme|tranquilo/tranquila|tranquillo/tranquilla|calmo/calma
cold|kalt|froid/froide|frío/fría|freddo/fredda|frio/fria
warm|warm|chaud/chaude|cálido/cálida|caldo/calda|quente/quente
strong|stark|fort/forte|fuerte/fuerte|forte/forte|forte/forte
dry|trocken|sec/sèche|seco/seca|secco/secca|seco/seca
""")
_HOURS = _table("""
one|une heure|la una|ein Uhr|l'una|uma hora
two|deux heures|las dos|zwei Uhr|le due|duas horas
three|trois heures|las tres|drei Uhr|le tre|três horas
five|cinq heures|las cinco|fünf Uhr|le cinque|cinco horas
six|six heures|las seis|sechs Uhr|le sei|seis horas
seven|sept heures|las siete|sieben Uhr|le sette|sete horas
eight|huit heures|las ocho|acht Uhr|le otto|oito horas
nine|neuf heures|las nueve|neun Uhr|le nove|nove horas
ten|dix heures|las diez|zehn Uhr|le dieci|dez horas
""")
_OPENING = _table("""
the market|le marché|el mercado|der Markt|il mercato|o mercado
the shop|le magasin|la tienda|das Geschäft|il negozio|a loja
the library|la bibliothèque|la biblioteca|die Bibliothek|la biblioteca|a biblioteca
the museum|le musée|el museo|das Museum|il museo|o museu
the school|l'école|la escuela|die Schule|la scuola|a escola
the post office|la poste|el correo|die Post|la posta|o correio
""")
_OPENS = _table("""
opens|ouvre|abre|öffnet|apre|abre
closes|ferme|cierra|schließt|chiude|fecha
""")
_FIXED = _table("""
Thank you for your letter.|Merci pour votre lettre.|Gracias por su carta.|Danke für Ihren Brief.|Grazie per la sua lettera.|Obrigado pela sua carta.
We arrived safely.|Nous sommes bien arrivés.|Llegamos bien.|Wir sind gut angekommen.|Siamo arrivati bene.|Chegámos bem.
It is raining in the north.|Il pleut dans le nord.|Llueve en el norte.|Im Norden regnet es.|Piove nel nord.|Chove no norte.
The sun is shining again.|Le soleil brille à nouveau.|El sol brilla de nuevo.|Die Sonne scheint wieder.|Il sole splende di nuovo.|O sol brilha de novo.
Where is the station?|Où est la gare ?|¿Dónde está la estación?|Wo ist der Bahnhof?|Dov'è la stazione?|Onde fica a estação?
How much does it cost?|Combien ça coûte ?|¿Cuánto cuesta?|Wie viel kostet das?|Quanto costa?|Quanto custa?
I do not understand.|Je ne comprends pas.|No entiendo.|Ich verstehe nicht.|Non capisco.|Não entendo.
Good morning.|Bonjour.|Buenos días.|Guten Morgen.|Buongiorno.|Bom dia.
See you tomorrow.|À demain.|Hasta mañana.|Bis morgen.|A domani.|Até amanhã.
Please close the door.|Fermez la porte, s'il vous plaît.|Cierre la puerta, por favor.|Bitte schließen Sie die Tür.|Chiuda la porta, per favore.|Feche a porta, por favor.
The train leaves every hour.|Le train part toutes les heures.|El tren sale cada hora.|Der Zug fährt jede Stunde ab.|Il treno parte ogni ora.|O comboio parte a cada hora.
Please keep your ticket.|Gardez votre billet, s'il vous plaît.|Guarde su billete, por favor.|Bitte behalten Sie Ihre Fahrkarte.|Conservi il biglietto, per favore.|Guarde o seu bilhete, por favor.
""")


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def _elide(text: str) -> str:
    for vowel in "aeiouéhè":
        text = text.replace(f"je {vowel}", f"j'{vowel}")
    return text


def _action(r: random.Random) -> tuple[str, ...]:
    """Subject, verb, object, maybe place, maybe time."""
    verb, thing = r.choice(_VERBS), r.choice(_THINGS)
    place = r.choice(_PLACES) if r.random() < 0.5 else ("",) * 6
    time = r.choice(_TIMES) if r.random() < 0.6 else ("",) * 6
    form = r.randrange(4)
    subject, forms = ((r.choice(_PEOPLE), verb[0]), (r.choice(_PEOPLE), verb[0]), (_WE, verb[1]), (_I, verb[2]))[form]
    early = bool(time[0]) and r.random() < 0.3
    said = []
    for i in range(6):
        who = "" if i in (2, 4, 5) and form > 1 else subject[i]  # the verb's ending says who
        if i == 3:
            words = (
                [time[i], forms[i], who, thing[i], place[i]] if early else [who, forms[i], time[i], thing[i], place[i]]
            )
        elif early:
            words = [time[i] + ",", who, forms[i], thing[i], place[i]]
        else:
            words = [who, forms[i], thing[i], place[i], time[i]]
        text = " ".join(w for w in words if w)
        said.append(_cap(_elide(text) if i == 1 else text) + ".")
    return tuple(said)


def _quality(r: random.Random) -> tuple[str, ...]:
    """Subject is adjective, maybe: but another subject is another adjective."""

    def clause() -> list[str]:
        s, a = r.choice(_SUBJECTS), r.choice(_ADJECTIVES)
        picked = [pair.split("/")[0 if gender == "m" else 1] for pair, gender in zip(a[2:], s[6], strict=True)]
        words = [a[0], picked[0], picked[1], a[1], picked[2], picked[3]]
        verbs = ("is", "est", "es", "ist", "è", "é")
        return [f"{s[i]} {verbs[i]} {words[i]}" for i in range(6)]

    one = clause()
    if r.random() < 0.5:
        return tuple(_cap(text) + "." for text in one)
    word = r.choice((("and", "et", "y", "und", "e", "e"), ("but", "mais", "pero", "aber", "ma", "mas")))
    comma = ", " if word[0] == "but" else " "
    two = clause()
    return tuple(_cap(one[i]) + comma + word[i] + " " + two[i] + "." for i in range(6))


def _opening(r: random.Random) -> tuple[str, ...]:
    place, verb, hour = r.choice(_OPENING), r.choice(_OPENS), r.choice(_HOURS)
    at = ("at", "à", "a", "um", "alle", "às")
    said = []
    for i in range(6):
        joined = f"{at[i]} {hour[i]}"
        if i == 4:
            joined = {"l'una": "all'una"}.get(hour[i], "alle " + hour[i].removeprefix("le "))
        if i == 5 and hour[i] == "uma hora":
            joined = "à uma hora"
        said.append(f"{_cap(place[i])} {verb[i]} {joined}.")
    return tuple(said)


def _sentence(r: random.Random) -> tuple[str, ...]:
    return r.choices((_action, _quality, _opening, lambda q: q.choice(_FIXED)), (50, 22, 12, 16))[0](r)


def make(r: random.Random) -> Chat:
    source = r.choice((0, 0, 0, 0, 1, 2, 3))
    to = r.randrange(1, 6) if source == 0 else 0
    sentences = [_sentence(r) for _ in range(r.randint(1, 5))]
    text, answer = (" ".join(s[i] for s in sentences) for i in (source, to))
    name, origin = LANGUAGES[to], LANGUAGES[source]
    prompt = r.choice((
        f"Translate into {name}: {text}", f"Translate to {name}: {text}", f"Translate this text into {name}:\n\n{text}",
        f"Translate from {origin} into {name}: {text}", f"What is this in {name}? {text}", f"{name}, please: {text}",
    ))  # fmt: skip
    if to and r.random() < 0.1:
        other = r.choice([i for i in range(1, 6) if i != to])
        again = " ".join(s[other] for s in sentences)
        return Chat((("user", prompt), ("assistant", answer), ("user", f"And in {LANGUAGES[other]}?")), again)
    return ask(prompt, answer)
